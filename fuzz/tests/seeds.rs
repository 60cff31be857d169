//! The targets over their seeds, cut off at every place and with every ASCII byte at every place. They hold without a
//! fuzzer, too.

use std::fs;
use std::path::Path;

fn check(target: fn(&[u8]), name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let mut seeds = 0;
    for entry in fs::read_dir(&folder).expect("a folder for each target") {
        let mut seed = fs::read(entry.expect("a seed").path()).expect("a seed");
        for end in 0..=seed.len() {
            target(&seed[..end]);
            target(&seed[end..]);
        }
        for at in 0..seed.len() {
            let right = seed[at];
            // The last two begin and go on with a character of another script.
            for byte in (0..0x80).chain([0xc3, 0xa9]) {
                seed[at] = byte;
                target(&seed);
            }
            seed[at] = right;
        }
        seeds += 1;
    }
    assert!(seeds > 0, "{} is empty", folder.display());
}

#[test]
fn canonical() {
    check(idemp_fuzz::canonical, "canonical");
}

#[test]
fn keys() {
    check(idemp_fuzz::keys, "keys");
}

#[test]
fn receive() {
    check(idemp_fuzz::receive, "receive");
}

#[test]
fn records() {
    check(idemp_fuzz::records, "records");
}

#[test]
fn retry_after() {
    check(idemp_fuzz::retry_after, "retry_after");
}

#[test]
fn signatures() {
    check(idemp_fuzz::signatures, "signatures");
}
