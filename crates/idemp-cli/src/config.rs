//! `idemp.toml`: where events and dead letters go (docs/cli.md).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use idemp_core::{EventType, Mode, SinkName, StatusPolicy, Verdict};
use idemp_dispatch::OnFull;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

use crate::address::{Address, is_webhook};
use crate::exit::Failure;
use crate::shell::Line;
use crate::times;

/// The configuration file of a command.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConfigArg {
    /// Take sinks and the dead-letter store from this file (idemp.toml)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArg {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, or something in it is wrong. The error names the place.
    pub(crate) fn load(&self) -> Result<Option<Config>, Failure> {
        let Some(path) = &self.config else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::usage(format_args!("--config: cannot read {}", path.display())).because(&error)
        })?;
        Config::parse(&text, path).map(Some)
    }

    /// Adds it to a command that comes next.
    pub(crate) fn say_again(&self, line: &mut Line) {
        if let Some(path) = &self.config {
            line.option("--config", &path.to_string_lossy());
        }
    }
}

/// What `idemp.toml` says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The dead-letter store, as `--dlq` takes it.
    pub(crate) dlq: Option<String>,
    #[serde(default)]
    pub(crate) sinks: BTreeMap<Name, SinkTable>,
    /// Where it stands, for messages.
    #[serde(skip)]
    pub(crate) path: PathBuf,
}

/// One sink. Options of the address may stand in `options`, too.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SinkTable {
    /// As `--to` takes it.
    pub(crate) to: String,
    #[serde(default)]
    pub(crate) options: BTreeMap<String, OptionValue>,
    pub(crate) secret_env: Option<String>,
    pub(crate) secret_file: Option<PathBuf>,
    /// Event types that go there; all by default.
    pub(crate) events: Option<Vec<String>>,
    pub(crate) mode: Option<ModeName>,
    pub(crate) concurrency: Option<usize>,
    #[serde(default, deserialize_with = "optional_duration")]
    pub(crate) timeout: Option<Duration>,
    #[serde(default)]
    pub(crate) on_full: OnFullName,
    /// What a status means at this sink, where that is not the table's word.
    #[serde(default)]
    pub(crate) status: BTreeMap<String, VerdictName>,

    // Webhooks only.
    #[serde(default)]
    pub(crate) standard_webhooks: bool,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Headers whose values are secret, by name and environment variable.
    #[serde(default)]
    pub(crate) headers_env: BTreeMap<String, String>,
    pub(crate) ca: Option<PathBuf>,
    /// Without user name and password.
    pub(crate) proxy: Option<String>,
    /// The environment variable that holds the proxy's URL, which may have them.
    pub(crate) proxy_env: Option<String>,
}

impl SinkTable {
    pub(crate) fn is_webhook(&self) -> bool {
        Address::parse(&self.to).is_ok_and(|address| is_webhook(&address.scheme))
    }

    /// Event types that go there; `None` for all.
    ///
    /// # Errors
    /// If there is none in the list, or one of them is no event type.
    pub(crate) fn event_types(&self) -> Result<Option<Vec<EventType>>, Failure> {
        let Some(events) = &self.events else { return Ok(None) };
        if events.is_empty() {
            return Err(Failure::usage(
                "events: the list is empty, so nothing would be sent; without the field all events are",
            ));
        }
        let event_type = |text: &String| {
            EventType::parse(text).map_err(|error| Failure::usage(format_args!("events: {text:?}")).because(&error))
        };
        events.iter().map(event_type).collect::<Result<_, _>>().map(Some)
    }

    /// # Errors
    /// If a status is no number from 100 to 999.
    pub(crate) fn policy(&self) -> Result<StatusPolicy, Failure> {
        let mut policy = StatusPolicy::default();
        for (status, verdict) in &self.status {
            let number = status.parse().ok().filter(|number| (100..=999).contains(number));
            let number = number
                .ok_or_else(|| Failure::usage(format_args!("status {status:?}: not a number from 100 to 999")))?;
            policy = policy.with(number, (*verdict).into());
        }
        Ok(policy)
    }
}

/// A sink's name, checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name(pub(crate) SinkName);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        SinkName::parse(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// An option's value, as text: numbers and truth values may stand without quotes.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OptionValue {
    Text(String),
    Number(i64),
    Truth(bool),
}

impl OptionValue {
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Truth(truth) => truth.to_string(),
        }
    }
}

/// What a sink promises.
#[derive(Clone, Copy, Debug, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ModeName {
    /// Retry, then dead-letter
    AtLeastOnce,
    /// One attempt; what is lost is counted
    AtMostOnce,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::AtLeastOnce => Self::AtLeastOnce,
            ModeName::AtMostOnce => Self::AtMostOnce,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnFullName {
    #[default]
    Wait,
    DeadLetter,
}

impl From<OnFullName> for OnFull {
    fn from(name: OnFullName) -> Self {
        match name {
            OnFullName::Wait => Self::Wait,
            OnFullName::DeadLetter => Self::DeadLetter,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum VerdictName {
    Delivered,
    Retry,
    RejectsEvent,
    RejectsConfiguration,
}

impl From<VerdictName> for Verdict {
    fn from(name: VerdictName) -> Self {
        match name {
            VerdictName::Delivered => Self::Delivered,
            VerdictName::Retry => Self::Retry,
            VerdictName::RejectsEvent => Self::RejectsEvent,
            VerdictName::RejectsConfiguration => Self::RejectsConfiguration,
        }
    }
}

fn optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    deserializer.deserialize_str(DurationText).map(Some)
}

/// Reads a duration, and says of what is none how one is written.
struct DurationText;

impl Visitor<'_> for DurationText {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number with a unit, such as \"5s\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Duration, E> {
        times::duration(text).map_err(E::custom)
    }
}

impl Config {
    fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            // Its own text quotes the line, which may hold what is not for every eye.
            let place = error.span().map_or_else(String::new, |span| {
                format!(":{}", text[..span.start].matches('\n').count() + 1)
            });
            let why = without_value(&error.message().lines().collect::<Vec<_>>().join(" "));
            Failure::usage(format_args!("{}{place}: {why}", path.display()))
        })?;
        if config.sinks.is_empty() && config.dlq.is_none() {
            return Err(Failure::usage(format_args!(
                "{}: neither sinks nor dlq",
                path.display()
            )));
        }
        config.path = path.to_owned();
        for (name, table) in &config.sinks {
            let checked = table.event_types().and_then(|_| table.policy());
            checked.map_err(|failure| config.place(&name.0, failure))?;
        }
        Ok(config)
    }

    /// Says of a fault that it is a sink's in this file.
    pub(crate) fn place(&self, sink: &SinkName, fault: Failure) -> Failure {
        fault.within(format_args!("{}: sink {sink}", self.path.display()))
    }
}

/// What is wrong with a value, without the text that stands there in its place: it may be a secret.
fn without_value(why: &str) -> String {
    match (why.split_once("string \""), why.rsplit_once("\", expected")) {
        (Some((before, _)), Some((_, after))) => format!("{before}string, expected{after}"),
        _ => why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("idemp.toml")).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn a_sink_with_all_it_may_have() {
        let config = parse(
            r#"
            dlq = "sqlite:letters.db"
            [sinks.orders]
            to = "kafka://localhost:9092/orders"
            options = { "security.protocol" = "SASL_SSL", "sasl.password_env" = "P", "linger.ms" = 5, "x" = true }
            secret_env = "S"
            events = ["tool_end"]
            mode = "at-most-once"
            concurrency = 8
            timeout = "2s"
            on_full = "dead-letter"
            status = { "409" = "delivered", "404" = "retry" }
            "#,
        )
        .unwrap();
        let sink = &config.sinks[&Name(SinkName::parse("orders").unwrap())];
        assert_eq!(sink.timeout, Some(Duration::from_secs(2)));
        let options: Vec<_> = sink.options.values().map(OptionValue::to_text).collect();
        assert_eq!(options, ["5", "P", "SASL_SSL", "true"].map(str::to_owned));
        let policy = sink.policy().unwrap();
        assert_eq!(policy.status(409), Verdict::Delivered);
        assert_eq!(policy.status(404), Verdict::Retry);
        assert_eq!(policy.status(400), Verdict::RejectsEvent);
    }

    #[test]
    fn a_fault_is_named_with_its_line_and_without_what_stands_there() {
        for (text, line, why) in [
            ("", 0, "neither sinks nor dlq"),
            (
                "dlq = \"memory:\"\n[sinks.a]\nto = \"x\"\nsecret = \"hunter2\"\n",
                4,
                "unknown field `secret`",
            ),
            ("[sinks.a]\nsecret_env = \"S\"\n", 1, "missing field `to`"),
            ("[sinks.\"a b\"]\nto = \"x\"\n", 1, ""),
            (
                "[sinks.a]\nto = \"x\"\ntimeout = \"hunter2\"\n",
                3,
                "not a whole number with a unit",
            ),
            (
                "[sinks.a]\nto = \"x\"\ntimeout = 5\n",
                3,
                "integer `5`, expected a number with a unit, such as \\\"5s\\\"",
            ),
            ("[sinks.a]\nto = \"x\"\nmode = \"exactly-once\"\n", 3, "at-least-once"),
            ("[sinks.a\n", 1, ""),
            (
                "[sinks.a]\nto = \"x\"\noptions = \"sasl.password=hunter2\"\n",
                3,
                "invalid type: string, expected a map",
            ),
            (
                "[sinks.a]\nto = \"x\"\nheaders = \"Authorization: \\\", expected hunter2\"\n",
                3,
                "string, expected a map",
            ),
            (
                "[sinks.a]\nto = \"x\"\nconcurrency = \"hunter2\"\n",
                3,
                "string, expected usize",
            ),
        ] {
            let error = parse(text).unwrap_err();
            let place = if line == 0 {
                "idemp.toml: ".to_owned()
            } else {
                format!("idemp.toml:{line}: ")
            };
            assert!(error.contains(&place) && error.contains(why), "{text:?}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn a_fault_of_a_sink_is_named_with_file_and_sink() {
        for (field, why) in [
            ("status = { \"4xx\" = \"retry\" }", "status "),
            ("events = []", "events: the list is empty"),
            ("events = [\"a:b\"]", "events: "),
        ] {
            let error = parse(&format!("[sinks.a]\nto = \"x\"\n{field}\n")).unwrap_err();
            assert!(error.contains(&format!("idemp.toml: sink a: {why}")), "{error}");
        }
    }
}
