//! The outermost object of a line, cut into its fields without touching their values.
//!
//! A value is kept as the text it is, so that numbers keep their digits. Where it ends is found by counting brackets;
//! whether it is good JSON is for whoever reads it.

/// One field of an object: places in the line, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// The name's text, with its quotes.
    pub(super) name: std::ops::Range<usize>,
    /// The value's text. It may be empty or broken.
    pub(super) value: std::ops::Range<usize>,
}

/// What is wrong with the object around the fields, and at which byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) what: &'static str,
    pub(super) at: usize,
}

/// Reads fields one after the other.
pub(super) struct Fields<'l> {
    line: &'l [u8],
    at: usize,
    begun: bool,
}

impl<'l> Fields<'l> {
    pub(super) const fn new(line: &'l [u8]) -> Self {
        Self {
            line,
            at: 0,
            begun: false,
        }
    }

    /// The next field; `None` after the last one, when nothing but blanks follows the object.
    pub(super) fn next(&mut self) -> Result<Option<Field>, Broken> {
        let first = !self.begun;
        if first {
            self.begun = true;
            self.expect(b'{', "expected a JSON object")?;
            self.skip_blanks();
            if self.peek() == Some(b'}') {
                return self.finish();
            }
        } else {
            self.skip_blanks();
            match self.peek() {
                Some(b'}') => return self.finish(),
                Some(b',') => self.at += 1,
                _ => return Err(self.broken("expected `,` or `}`")),
            }
        }
        self.skip_blanks();
        let name = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.broken("expected a string as key"));
        }
        self.skip_string();
        let name = name..self.at;
        self.expect(b':', "expected `:`")?;
        self.skip_blanks();
        let value = self.at;
        self.skip_value();
        Ok(Some(Field {
            name,
            value: value..self.at,
        }))
    }

    fn finish(&mut self) -> Result<Option<Field>, Broken> {
        self.at += 1;
        self.skip_blanks();
        match self.peek() {
            None => Ok(None),
            Some(_) => Err(self.broken("text after the JSON object")),
        }
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Broken> {
        self.skip_blanks();
        if self.peek() != Some(byte) {
            return Err(self.broken(what));
        }
        self.at += 1;
        Ok(())
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Skips a string, from its opening quote to behind its closing one, or to the end of the line.
    fn skip_string(&mut self) {
        self.at += 1;
        while let Some(step) = self.line[self.at..]
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\'))
        {
            self.at += step + 1;
            if self.line[self.at - 1] == b'"' {
                return;
            }
            self.at = self.line.len().min(self.at + 1);
        }
        self.at = self.line.len();
    }

    fn skip_value(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => self.skip_string(),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth == 0 => return,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return,
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn peek(&self) -> Option<u8> {
        self.line.get(self.at).copied()
    }

    const fn broken(&self, what: &'static str) -> Broken {
        Broken { what, at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str) -> Result<Vec<(&str, &str)>, Broken> {
        let (mut fields, mut found) = (Fields::new(line.as_bytes()), Vec::new());
        while let Some(field) = fields.next()? {
            found.push((&line[field.name], &line[field.value]));
        }
        Ok(found)
    }

    #[test]
    fn values_keep_their_text() {
        let line = r#" {"a" : 1.0 , "b\"":"x\\", "c":[1,{"d":"]}"}],"e":{"f":[]} } "#;
        let expected = [
            (r#""a""#, "1.0"),
            (r#""b\"""#, r#""x\\""#),
            (r#""c""#, r#"[1,{"d":"]}"}]"#),
            (r#""e""#, r#"{"f":[]}"#),
        ];
        assert_eq!(fields(line).unwrap(), expected);
        assert_eq!(fields("{}").unwrap(), []);
    }

    #[test]
    fn what_is_broken_is_named_with_its_place() {
        for (line, what, at) in [
            ("", "expected a JSON object", 0),
            (" [1]", "expected a JSON object", 1),
            ("{", "expected a string as key", 1),
            ("{a:1}", "expected a string as key", 1),
            (r#"{"a" 1}"#, "expected `:`", 5),
            (r#"{"a":1 2}"#, "expected `,` or `}`", 7),
            (r#"{"a":1"#, "expected `,` or `}`", 6),
            (r#"{"a":1]"#, "expected `,` or `}`", 6),
            (r#"{"a":1,}"#, "expected a string as key", 7),
            (r#"{"a":1} x"#, "text after the JSON object", 8),
            (r#"{"a":"x"#, "expected `,` or `}`", 7),
            (r#"{"a":"x\"#, "expected `,` or `}`", 8),
            (r#"{"a":[1"#, "expected `,` or `}`", 7),
        ] {
            assert_eq!(fields(line), Err(Broken { what, at }), "{line}");
        }
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(1 << 20), "]".repeat(1 << 20));
        assert_eq!(fields(&deep).unwrap().len(), 1);
    }
}
