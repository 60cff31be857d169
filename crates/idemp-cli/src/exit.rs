//! Exit codes and errors of one line.

use std::error::Error;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use crate::io::print_bytes;

/// How a command ended. Scripts rely on the numbers (docs/cli.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All delivered, or the thing asked for is true.
    Done = 0,
    /// A failed check, an invalid line, an error at run time, an event saved nowhere.
    Failed = 1,
    /// Wrong usage or configuration, also a store or an output file that cannot be opened at the start.
    Usage = 2,
    /// Finished, but some events were dead-lettered, or entries skipped.
    Partial = 3,
    /// Interrupted, with everything accounted for.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command could not do what it was asked: one line for a person, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    text: String,
}

impl Failure {
    /// Wrong usage or configuration. Says what is wrong and where.
    pub(crate) fn usage(what: impl Display) -> Self {
        Self {
            exit: Exit::Usage,
            text: what.to_string(),
        }
    }

    /// What a build without a feature says.
    #[allow(dead_code, reason = "a build with every feature misses nothing")]
    pub(crate) fn not_built(what: &str, feature: &str) -> Self {
        Self::usage(format_args!(
            "this build has no {what}: build idemp-cli with the feature {feature}"
        ))
    }

    /// A failed check or an error at run time. Says what is wrong and where.
    pub(crate) fn failed(what: impl Display) -> Self {
        Self {
            exit: Exit::Failed,
            text: what.to_string(),
        }
    }

    /// Adds the error behind it, with what is behind that.
    pub(crate) fn because(mut self, error: &dyn Error) -> Self {
        self.text.push_str(": ");
        self.text.push_str(&chain(error));
        self
    }

    /// Says where it happened.
    pub(crate) fn within(mut self, place: impl Display) -> Self {
        self.text = format!("{place}: {}", self.text);
        self
    }

    /// Prints it to standard error and gives the exit code.
    pub(crate) fn report(&self) -> Exit {
        complain(format_args!("error: {}", self.text));
        self.exit
    }
}

/// An error with what is behind it. What one of them says of the other already is not said again.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut last = 0;
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        next = error.source();
        if text.contains(&more) {
            continue;
        }
        if more.contains(&text[last..]) {
            text.truncate(last);
        } else {
            text.push_str(": ");
            last = text.len();
        }
        text.push_str(&more);
    }
    text
}

/// Prints one line to standard error, with the program's name in front.
pub(crate) fn complain(what: impl Display) {
    say(format_args!("idemp: {what}"));
}

/// Prints one line to standard error as it is.
pub(crate) fn say(what: impl Display) {
    // A file name may have a line end in it; the line stays one line.
    let line = what.to_string().replace(char::is_control, " ");
    // There is nowhere left to report to if standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// What clap has to say: help and version as they are, wrong usage as one line to standard error.
pub(crate) fn usage_or_help(error: &clap::Error) -> Exit {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};

    match error.kind() {
        DisplayHelp | DisplayVersion => match print_bytes(error.render().to_string().as_bytes()) {
            Ok(()) => Exit::Done,
            Err(failure) => failure.report(),
        },
        // Nothing was asked for: the help tells what can be.
        DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Exit::Usage
        }
        _ => Failure::usage(one_line(&without_addresses(error)) + &tip(error)).report(),
    }
}

/// What can be given in place of an argument that is missed, by how clap calls the argument.
const INSTEAD: [(&str, &str); 3] = [
    ("--to <URL>", "--config <FILE>"),
    ("--secret-env <NAME>", "--secret-file <PATH>"),
    ("--listen <ADDR>", "--kafka <BROKERS> or --redis-stream <URL>"),
];

/// What may have been meant, and where to read on.
fn tip(error: &clap::Error) -> String {
    use clap::error::ContextKind::{InvalidArg, SuggestedArg, SuggestedSubcommand, SuggestedValue};
    use clap::error::ContextValue;
    use clap::error::ErrorKind::{InvalidSubcommand, MissingRequiredArgument, UnknownArgument};

    let words = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word.as_str()],
        Some(ContextValue::Strings(words)) => words.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let mut tip = String::new();
    let meant = [SuggestedArg, SuggestedSubcommand, SuggestedValue]
        .into_iter()
        .flat_map(words)
        .next_back();
    if let Some(meant) = meant {
        tip.push_str(&format!("; did you mean {meant}?"));
    }
    if error.kind() == MissingRequiredArgument {
        let missed = words(InvalidArg);
        for (name, instead) in INSTEAD {
            if missed.contains(&name) {
                tip.push_str(&format!("; in place of {name} also {instead}"));
            }
        }
    }
    if matches!(
        error.kind(),
        MissingRequiredArgument | UnknownArgument | InvalidSubcommand
    ) {
        let end = if tip.ends_with('?') { " --help" } else { "; --help" };
        tip.push_str(&format!("{end} tells what there is"));
    }
    tip
}

/// What clap has to say, without the addresses that it would repeat: one that is wrong may hold a password.
fn without_addresses(error: &clap::Error) -> String {
    let mut text = error.render().to_string();
    for (_, value) in error.context() {
        if let clap::error::ContextValue::String(value) = value
            && value.contains(['@', '?'])
        {
            text = text.replace(value.as_str(), "...");
        }
    }
    text
}

/// The first paragraph of what clap says, which is the error; tips and usage follow.
fn one_line(text: &str) -> String {
    let paragraph = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let line = paragraph.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn the_first_paragraph_becomes_one_line() {
        let text = "error: these are missing:\n  --to <URL>\n  --secret-env <NAME>\n\nUsage: idemp send\n\nFor more\n";
        assert_eq!(one_line(text), "these are missing: --to <URL> --secret-env <NAME>");
        assert_eq!(one_line("plain"), "plain");
        assert_eq!(one_line(""), "");
    }

    #[test]
    fn the_source_chain_is_joined() {
        let inner = io::Error::other("disk on fire");
        let outer = io::Error::other(SmallError(inner));
        let failure = Failure::failed("cannot write to out.jsonl").because(&outer);
        assert_eq!(failure.text, "cannot write to out.jsonl: small: disk on fire");
    }

    #[test]
    fn what_is_said_already_is_not_said_again() {
        let inner = io::Error::other("disk on fire");
        let outer = io::Error::other(SmallError(io::Error::other(inner)));
        assert_eq!(chain(&outer), "small: disk on fire");
        let repeats = Said(
            "cannot read",
            Some(Box::new(Said("no db", Some(Box::new(Said("code 26: no db", None)))))),
        );
        assert_eq!(chain(&repeats), "cannot read: code 26: no db");
    }

    #[derive(Debug)]
    struct Said(&'static str, Option<Box<Said>>);

    impl Display for Said {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Said {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|said| said as &dyn Error)
        }
    }

    #[derive(Debug)]
    struct SmallError(io::Error);

    impl Display for SmallError {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("small")
        }
    }

    impl Error for SmallError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }
}
