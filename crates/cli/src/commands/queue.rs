//! `shunt queue`

use shuntyard_protocol::api::{Page, QueueItem};

use crate::{
    args::Queue,
    client::Client,
    exit::Result,
    show::{self, table},
};

pub(crate) async fn run(args: Queue) -> Result {
    let page: Page<QueueItem> = Client::connect(&args.connect)?.get("/queue", &[]).await?;
    if args.json {
        anstream::println!("{}", serde_json::to_string_pretty(&page)?);
        return Ok(());
    }
    if page.items.is_empty() {
        anstream::println!("nothing waits");
        return Ok(());
    }
    let row = |item: &QueueItem| {
        vec![
            item.title.clone(),
            show::time(item.since),
            item.ahead.to_string(),
            item.waiting.clone(),
        ]
    };
    table::print(
        &["job", "since", "ahead", "why"],
        &page.items.iter().map(row).collect::<Vec<_>>(),
    );
    Ok(())
}
