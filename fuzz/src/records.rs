use idemp_dlq::{DeadLetter, Letterhead};

/// Records of dead letters: what is read is written so that it is read again.
pub fn records(json: &[u8]) {
    if let Ok(head) = Letterhead::from_json(json) {
        assert_eq!(Letterhead::from_json(head.to_json().as_bytes()).as_ref(), Ok(&head));
    }
    if let Ok(letter) = DeadLetter::from_json(json) {
        assert_eq!(DeadLetter::from_json(letter.to_json().as_bytes()).as_ref(), Ok(&letter));
        assert_eq!(Letterhead::from_json(json), Ok(letter.letterhead()));
    }
}
