//! `shunt login`

use std::path::Path;

use shuntyard_protocol::api::Info;

use crate::{
    args::Login,
    client::{Client, Profile, read_secret},
    exit::Result,
};

pub(crate) async fn run(args: Login) -> Result {
    let token = read_secret(args.with_token_file.as_deref().unwrap_or(Path::new("-")))?;
    let client = Client::new(&args.server, &token)?;
    let info: Info = client.get("/info", &[]).await?;
    Profile { url: client.url().to_owned(), token }.save()?;
    anstream::println!("logged in to {} (version {})", client.url(), info.version);
    Ok(())
}
