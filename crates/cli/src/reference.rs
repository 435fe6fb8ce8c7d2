//! The reference pages, made from the code itself: `cargo xtask gen` writes them into `docs/`.

use std::fmt::Write;

use clap::{Command, CommandFactory};

use crate::{
    args::{Args, Page},
    exit::Result,
};

const CLI_HEAD: &str = "# Commands\n\nMade from the program by `cargo xtask gen`. Exit codes: 0 ok, 1 \
failed, 2 usage or plan error,\n130 interrupted. Colour only goes to a terminal, and `NO_COLOR` turns it \
off.\n";

pub(crate) fn print(page: Page) -> Result {
    let text = match page {
        Page::Cli => cli(),
        Page::Config => shuntyard_server::config::reference(),
        Page::Openapi => {
            let document = shuntyard_server::http::openapi();
            format!("{}\n", serde_json::to_string_pretty(&document)?)
        }
    };
    anstream::print!("{text}");
    Ok(())
}

fn cli() -> String {
    let mut text = CLI_HEAD.to_owned();
    let mut root = Args::command().term_width(100);
    root.build();
    add(&mut text, &mut root);
    text
}

fn add(text: &mut String, command: &mut Command) {
    let name = command.get_bin_name().unwrap_or("shunt").to_owned();
    let help = command.render_long_help().to_string();
    let help: Vec<_> = help.lines().map(str::trim_end).collect();
    write!(text, "\n## {name}\n\n```text\n{}\n```\n", help.join("\n")).expect("a string takes all");
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            add(text, inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn check(name: &str, made: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        let kept = fs::read_to_string(path).unwrap_or_default();
        assert!(kept == made, "docs/{name} is stale: run `cargo xtask gen`");
    }

    #[test]
    fn the_reference_pages_are_what_the_code_says() {
        check("cli.md", &cli());
        check("config.md", &shuntyard_server::config::reference());
        let document = shuntyard_server::http::openapi();
        check("openapi.json", &format!("{}\n", serde_json::to_string_pretty(&document).unwrap()));
    }
}
