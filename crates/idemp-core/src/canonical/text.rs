//! Reads JSON text. The grammar is jiter's; what it leaves open is settled in `fault`.

use jiter::{Jiter, JiterError, JiterErrorType, JsonErrorType, Peek};

use super::draft::{Draft, Object};
use super::error::{CanonicalError, Problem};
use super::{fault, number};

/// Room made for open arrays and objects at first.
const TYPICAL_DEPTH: usize = 16;

/// Writes the one value of a JSON text.
pub(super) fn write(text: &[u8], draft: &mut Draft<'_>) -> Result<(), CanonicalError> {
    Reader {
        text,
        jiter: Jiter::new(text),
        base: 0,
    }
    .read(draft)
}

struct Reader<'t> {
    text: &'t [u8],
    jiter: Jiter<'t>,
    /// Where in the text `jiter` began.
    base: usize,
}

enum Container {
    Array,
    Object(Object),
}

impl Reader<'_> {
    fn read(&mut self, draft: &mut Draft<'_>) -> Result<(), CanonicalError> {
        let mut open = Vec::with_capacity(TYPICAL_DEPTH);
        let mut next = self.peek()?;
        loop {
            match next {
                Peek::Object => {
                    let mut object = draft.begin_object().map_err(|problem| self.error(problem))?;
                    match self.jiter.known_object() {
                        Ok(Some(key)) => {
                            draft.key(&mut object, key);
                            open.push(Container::Object(object));
                            next = self.peek()?;
                            continue;
                        }
                        Ok(None) => draft.end_object(&object),
                        Err(error) => return Err(self.fault(&error)),
                    }
                }
                Peek::Array => {
                    draft.begin_array().map_err(|problem| self.error(problem))?;
                    match self.jiter.known_array() {
                        Ok(Some(first)) => {
                            open.push(Container::Array);
                            next = first;
                            continue;
                        }
                        Ok(None) => draft.end_array(),
                        Err(error) => return Err(self.fault(&error)),
                    }
                }
                scalar => self.scalar(scalar, draft)?,
            }

            // A value has ended: go on in what holds it, or end that too.
            next = loop {
                match open.last_mut() {
                    None => return self.jiter.finish().map_err(|error| self.fault(&error)),
                    Some(Container::Array) => match self.jiter.array_step() {
                        Ok(Some(element)) => {
                            draft.next_element();
                            break element;
                        }
                        Ok(None) => draft.end_array(),
                        Err(error) => return Err(self.fault(&error)),
                    },
                    Some(Container::Object(object)) => match self.jiter.next_key() {
                        Ok(Some(key)) => {
                            draft.key(object, key);
                            break self.peek()?;
                        }
                        Ok(None) => draft.end_object(object),
                        Err(error) => return Err(self.fault(&error)),
                    },
                }
                open.pop();
            };
        }
    }

    fn peek(&mut self) -> Result<Peek, CanonicalError> {
        self.jiter.peek().map_err(|error| self.fault(&error))
    }

    fn scalar(&mut self, first: Peek, draft: &mut Draft<'_>) -> Result<(), CanonicalError> {
        match first {
            Peek::String => match self.jiter.known_str() {
                Ok(text) => draft.string(text),
                Err(error) => return Err(self.fault(&error)),
            },
            Peek::Null => match self.jiter.known_null() {
                Ok(()) => draft.literal("null"),
                Err(error) => return Err(self.fault(&error)),
            },
            Peek::True | Peek::False => match self.jiter.known_bool(first) {
                Ok(value) => draft.literal(if value { "true" } else { "false" }),
                Err(error) => return Err(self.fault(&error)),
            },
            number if number.is_num() => return self.number(number, draft),
            _ => return Err(self.error(Problem::ExpectedValue)),
        }
        Ok(())
    }

    fn number(&mut self, first: Peek, draft: &mut Draft<'_>) -> Result<(), CanonicalError> {
        let start = self.offset();
        match self.jiter.known_number_bytes(first) {
            Ok(_) => {}
            Err(error) if error.error_type == JiterErrorType::JsonError(JsonErrorType::NumberOutOfRange) => {
                self.long_number(start)?;
            }
            Err(error) => return Err(self.fault(&error)),
        }
        // The grammar of numbers is ASCII.
        let digits = str::from_utf8(&self.text[start..self.offset()]).unwrap_or_default();
        number::write_text(draft.out, digits)
            .map_err(|number::OutOfRange| CanonicalError::in_text(Problem::NumberOutOfRange, self.text, start))
    }

    /// Passes over a number whose integer part has more digits than jiter takes at once (4,300): begins anew at the last of
    /// these digits, which is a number too, with the same fraction and exponent.
    fn long_number(&mut self, start: usize) -> Result<(), CanonicalError> {
        let sign = usize::from(self.text[start] == b'-');
        let digits = self.text[start + sign..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        self.base = start + sign + digits - 1;
        self.jiter = Jiter::new(&self.text[self.base..]);
        self.jiter
            .next_number_bytes()
            .map(|_| ())
            .map_err(|error| self.fault(&error))
    }

    fn offset(&self) -> usize {
        self.base + self.jiter.current_index()
    }

    /// An error at the value that comes next.
    #[cold]
    fn error(&self, problem: Problem) -> CanonicalError {
        fault::at(self.text, self.offset(), problem)
    }

    #[cold]
    fn fault(&self, error: &JiterError) -> CanonicalError {
        fault::of_jiter(self.text, error, self.base, self.offset())
    }
}
