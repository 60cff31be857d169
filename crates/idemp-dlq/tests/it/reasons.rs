//! Every code that an operator sees has an entry in docs/reasons.md.

use idemp_core::{Class, Reason};

#[test]
fn every_code_has_one_entry() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reasons.md");
    let page = std::fs::read_to_string(path).unwrap();
    let codes = Reason::ALL
        .iter()
        .map(|reason| reason.code())
        .chain(Class::ALL.iter().map(|class| class.code()));
    for code in codes {
        let entries = page.lines().filter(|line| *line == format!("### `{code}`")).count();
        assert_eq!(entries, 1, "{code}");
    }
}

#[test]
fn every_reason_is_shown_with_its_class() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reasons.md");
    let page = std::fs::read_to_string(path).unwrap();
    for reason in Reason::ALL {
        let entry = page
            .split("\n### ")
            .find(|entry| entry.starts_with(&format!("`{reason}`\n")))
            .unwrap();
        assert!(entry.contains(&format!("Class: `{}`.", reason.class())), "{reason}");
    }
}
