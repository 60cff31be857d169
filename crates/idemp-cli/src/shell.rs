//! Command lines that a person may paste into a shell.

/// A command with its words, quoted where a POSIX shell would read them as something else.
#[derive(Debug)]
pub(crate) struct Line(String);

impl Line {
    /// A command without options.
    pub(crate) fn new(command: &str) -> Self {
        Self(command.to_owned())
    }

    /// Adds an option without a value.
    pub(crate) fn flag(&mut self, name: &str) {
        self.0.push(' ');
        self.0.push_str(name);
    }

    /// Adds an option with its value.
    pub(crate) fn option(&mut self, name: &str, value: &str) {
        self.flag(name);
        self.flag(&quoted(value));
    }

    /// Adds an option whose value is not to be shown: this word stands for it.
    pub(crate) fn option_to_fill_in(&mut self, name: &str, word: &str) {
        self.flag(name);
        self.flag(word);
    }
}

impl From<Line> for String {
    fn from(line: Line) -> Self {
        line.0
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:,=@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_command_as_they_are() {
        for (word, expected) in [
            ("sqlite:a-b/c.db", "sqlite:a-b/c.db"),
            ("", "''"),
            ("a b", "'a b'"),
            ("redis://h:1/0?stream=s&ca=c", "'redis://h:1/0?stream=s&ca=c'"),
            ("it's", r"'it'\''s'"),
            ("~/$HOME", "'~/$HOME'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }
}
