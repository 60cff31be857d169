//! Addresses of sinks and stores: `SCHEME://PLACE?OPTION=VALUE&...`.
//!
//! An option whose name ends in `_env` or `_file` names the environment variable or file that holds the value of the
//! option without that ending. That is how passwords get in: an address stands on the command line for all to see.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use crate::exit::Failure;
use crate::secret;

/// An address, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// What stands before `:`, in lower case.
    pub(crate) scheme: String,
    /// What stands between `:` or `://` and `?`.
    pub(crate) place: String,
    pub(crate) options: Options,
}

impl Address {
    /// Takes an address apart.
    ///
    /// # Errors
    /// If it has no scheme, or its options are not of the form `NAME=VALUE`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once(':')
            .filter(|(scheme, rest)| !is_host_and_port(scheme, rest))
            .ok_or("has no scheme such as http://")?;
        let scheme = scheme.to_ascii_lowercase();
        let rest = match rest.strip_prefix("//") {
            Some(rest) if is_webhook(&scheme) && rest.starts_with('/') => return Err("has no host".to_owned()),
            Some(rest) => rest,
            None if is_webhook(&scheme) || rest.starts_with('/') => {
                return Err(format!("{scheme}: wants // after it"));
            }
            None => rest,
        };
        let (place, query) = match rest.split_once('?') {
            // The query of a webhook is the receiver's.
            Some((place, query)) if !is_webhook(&scheme) => (place, query),
            _ => (rest, ""),
        };
        let mut options = Options::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or("an option without =")?;
            let value = decode(value).ok_or_else(|| format!("option {name}: not percent-encoded UTF-8"))?;
            options.add(name, value)?;
        }
        Ok(Self {
            scheme,
            place: place.to_owned(),
            options,
        })
    }
}

impl Address {
    /// Scheme and place, without what may be secret: the user before the host, and the options.
    pub(crate) fn shown(&self) -> String {
        let place = self.place.rsplit('@').next().unwrap_or_default();
        format!("{}://{place}", self.scheme)
    }

    /// Whether nothing in it can be a login or a token: no user, and no option that says more than where something is
    /// or what names it. The path of a webhook is often its password, and its query may be anything.
    pub(crate) fn is_for_every_eye(&self) -> bool {
        let is_plain = |(name, value): (&String, &String)| {
            let names_something = name.ends_with("_env") || name.ends_with("_file");
            (names_something || PLAIN_OPTIONS.contains(&name.as_str())) && !value.contains('@')
        };
        let has_path = is_webhook(&self.scheme) && self.place.trim_end_matches('/').contains('/');
        !has_path && !self.place.contains(['@', '?', '#']) && self.options.0.iter().all(is_plain)
    }

    /// Takes the user before the host, and the option `password`.
    ///
    /// # Errors
    /// If a password stands in the open.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(crate) fn take_login(&mut self) -> Result<Login, Failure> {
        let place = std::mem::take(&mut self.place);
        let (user, place) = match place.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, place.as_str()),
        };
        if user.is_some_and(|user| user.contains(':')) {
            return Err(Failure::usage(
                "a password in an address is seen by all: give password_env=VARIABLE or password_file=PATH",
            ));
        }
        let username = match user.map(decode) {
            Some(None) => return Err(Failure::usage("the user name is not percent-encoded UTF-8")),
            user => user.flatten(),
        };
        Ok(Login {
            place: place.to_owned(),
            username,
            password: self.options.take_secret("password")?,
        })
    }
}

/// Who logs in where.
#[cfg(any(feature = "redis", feature = "postgres"))]
pub(crate) struct Login {
    /// The place without the user.
    pub(crate) place: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Zeroizing<String>>,
}

#[cfg(feature = "postgres")]
impl Login {
    /// A URL with everything in it, for a client that wants it so.
    pub(crate) fn url(&self, scheme: &str, options: &[(String, Zeroizing<String>)]) -> Zeroizing<String> {
        let mut url = Zeroizing::new(format!("{scheme}://"));
        if self.username.is_some() || self.password.is_some() {
            encode(self.username.as_deref().unwrap_or_default(), &mut url);
            if let Some(password) = &self.password {
                url.push(':');
                encode(password, &mut url);
            }
            url.push('@');
        }
        url.push_str(&self.place);
        for (index, (name, value)) in options.iter().enumerate() {
            url.push(if index == 0 { '?' } else { '&' });
            encode(name, &mut url);
            url.push('=');
            encode(value, &mut url);
        }
        url
    }
}

/// Options that say where something is, or how much of it.
const PLAIN_OPTIONS: [&str; 8] = [
    "stream",
    "maxlen",
    "cluster",
    "ca",
    "endpoint",
    "region",
    "max_message_bytes",
    "policy_violation",
];

/// Appends text percent-encoded but for the unreserved characters (RFC 3986, section 2.3).
#[cfg(feature = "postgres")]
fn encode(text: &str, out: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for digit in [byte >> 4, byte & 15] {
                out.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
            }
        }
    }
}

/// Whether this is `HOST:PORT` and more, where a scheme was forgotten.
fn is_host_and_port(before: &str, after: &str) -> bool {
    let port = after.split(['/', '?', '#', ',']).next().unwrap_or_default();
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port || !before.starts_with(|first: char| first.is_ascii_alphabetic()) || before.contains(['.', '/', '@', '['])
}

pub(crate) fn is_webhook(scheme: &str) -> bool {
    matches!(scheme, "http" | "https")
}

/// Options of an address, together with those of `idemp.toml`. Each is taken once; what is left is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options(BTreeMap<String, String>);

impl Options {
    /// Adds one.
    ///
    /// # Errors
    /// If it is there already.
    pub(crate) fn add(&mut self, name: &str, value: String) -> Result<(), String> {
        match self.0.insert(name.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(format!("option {name} is given twice")),
        }
    }

    /// The option's value, which stays.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The option's value, if it is there.
    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// The option's value as something that is parsed.
    ///
    /// # Errors
    /// If it cannot be.
    pub(crate) fn take_parsed<T: std::str::FromStr>(&mut self, name: &str, what: &str) -> Result<Option<T>, Failure> {
        let parse = |text: String| {
            text.parse()
                .map_err(|_| Failure::usage(format_args!("option {name}: not {what}")))
        };
        self.take(name).map(parse).transpose()
    }

    /// A value that is secret: from the variable that `NAME_env` names, or the file that `NAME_file` names.
    ///
    /// # Errors
    /// If it is given in the open, or cannot be had.
    pub(crate) fn take_secret(&mut self, name: &str) -> Result<Option<Zeroizing<String>>, Failure> {
        if self.take(name).is_some() {
            return Err(Failure::usage(format_args!(
                "option {name} would show a secret: give {name}_env=VARIABLE or {name}_file=PATH"
            )));
        }
        self.take_indirect(name)
    }

    /// Every option that is left, those by `_env` and `_file` resolved.
    ///
    /// # Errors
    /// If a secret is given in the open, or a variable or file cannot be read.
    pub(crate) fn take_all(&mut self) -> Result<Vec<(String, Zeroizing<String>)>, Failure> {
        let names: Vec<String> = self.0.keys().cloned().collect();
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            let plain = name.strip_suffix("_env").or_else(|| name.strip_suffix("_file"));
            match plain {
                Some(plain) => all.extend(self.take_indirect(plain)?.map(|value| (plain.to_owned(), value))),
                None if is_secret(&name) => all.extend(self.take_secret(&name)?.map(|value| (name, value))),
                None => all.extend(self.take(&name).map(|value| (name, value.into()))),
            }
        }
        Ok(all)
    }

    fn take_indirect(&mut self, name: &str) -> Result<Option<Zeroizing<String>>, Failure> {
        let (variable, file) = (self.take(&format!("{name}_env")), self.take(&format!("{name}_file")));
        match (variable, file) {
            (None, None) => Ok(None),
            (Some(variable), None) => secret::text_from_env(&format!("{name}_env"), &variable).map(Some),
            (None, Some(path)) => secret::text_from_file(path.as_ref()).map(Some),
            (Some(_), Some(_)) => Err(Failure::usage(format_args!(
                "{name}_env and {name}_file: give one of them"
            ))),
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// If an option is left that nobody took.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(Failure::usage(format_args!("unknown option {name}"))),
        }
    }
}

/// Whether an option that a library knows holds a secret, by how its name ends.
fn is_secret(name: &str) -> bool {
    let ends = ["password", "passphrase", "secret", "key.pem", "ssl_key"];
    ends.iter().any(|end| name.ends_with(end))
}

/// Undoes percent-encoding (RFC 3986, section 2.1); `None` if it is broken, or hides what is not UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let [high, low, after @ ..] = rest else { return None };
            let digit = |byte: u8| char::from(byte).to_digit(16);
            bytes.push((digit(*high)? * 16 + digit(*low)?) as u8);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(pairs: &[(&str, &str)]) -> Options {
        Options(
            pairs
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
        )
    }

    #[test]
    fn an_address_is_taken_apart() {
        let address = Address::parse("KAFKA://a:9092,b:9093/events?x=1&y=%20%C3%A9%3d").unwrap();
        assert_eq!(address.scheme, "kafka");
        assert_eq!(address.place, "a:9092,b:9093/events");
        assert_eq!(address.options, options(&[("x", "1"), ("y", " é=")]));
        let address = Address::parse("https://h/a?x").unwrap();
        assert_eq!((&*address.place, address.options), ("h/a?x", Options::default()));
        let address = Address::parse("sns:arn:aws:sns:eu-west-1:000000000000:t").unwrap();
        assert_eq!(
            (&*address.scheme, &*address.place),
            ("sns", "arn:aws:sns:eu-west-1:000000000000:t")
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "kafka",
            "kafka://b/t?x",
            "kafka://b/t?x=1&x=2",
            "kafka://b/t?x=%f",
            "kafka://b/t?x=%ff",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_without_scheme_or_slashes_is_told_so() {
        for text in [
            "127.0.0.1:18090/webhooks",
            "localhost:8080",
            "localhost:8080/x",
            "example.com:x",
            "[::1]:80",
            "me@h:1",
            "h",
            "/a:b",
            ":80",
            "://h",
        ] {
            assert_eq!(
                Address::parse(text).unwrap_err(),
                "has no scheme such as http://",
                "{text}"
            );
        }
        for (text, expected) in [
            ("https:/host", "https: wants // after it"),
            ("HTTP:host/a", "http: wants // after it"),
            ("kafka:/b/t", "kafka: wants // after it"),
            ("http:///a", "has no host"),
        ] {
            assert_eq!(Address::parse(text).unwrap_err(), expected, "{text}");
        }
    }

    #[test]
    fn a_secret_in_the_open_is_refused_without_being_shown() {
        let failure = options(&[("password", "hunter2")]).take_secret("password").unwrap_err();
        let text = format!("{failure:?}");
        assert!(
            text.contains("password_env=VARIABLE") && !text.contains("hunter2"),
            "{text}"
        );
    }

    #[test]
    fn a_secret_of_a_library_in_the_open_is_refused_without_being_shown() {
        for name in [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "ssl.keystore.password",
            "sasl.oauthbearer.client.secret",
            "sasl.oauthbearer.assertion.private.key.passphrase",
        ] {
            let failure = options(&[("linger.ms", "5"), (name, "hunter2")])
                .take_all()
                .unwrap_err();
            let text = format!("{failure:?}");
            assert!(
                text.contains(&format!("{name}_env=VARIABLE")) && !text.contains("hunter2"),
                "{text}"
            );
        }
        let all = options(&[("ssl.key.location", "key.pem")]).take_all().unwrap();
        assert_eq!((&*all[0].0, &**all[0].1), ("ssl.key.location", "key.pem"));
    }

    #[test]
    #[cfg(feature = "postgres")]
    fn a_login_is_put_together_so_that_nothing_in_it_is_taken_for_something_else() {
        let login = Login {
            place: "h:5432/db".to_owned(),
            username: Some("a@b".to_owned()),
            password: Some("p:/é?".to_owned().into()),
        };
        let options = [("sslmode".to_owned(), "require&x".to_owned().into())];
        assert_eq!(
            login.url("postgres", &options).as_str(),
            "postgres://a%40b:p%3A%2F%C3%A9%3F@h:5432/db?sslmode=require%26x"
        );
    }

    #[test]
    fn an_option_that_nobody_takes_is_unknown() {
        let mut options = options(&[("stream", "s"), ("strem", "s")]);
        assert_eq!(options.take("stream").as_deref(), Some("s"));
        let failure = format!("{:?}", options.finish().unwrap_err());
        assert!(failure.contains("unknown option strem"), "{failure}");
    }

    #[test]
    fn what_is_named_by_a_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        std::fs::write(&path, "p w\n").unwrap();
        let mut options = options(&[("sasl.password_file", path.to_str().unwrap()), ("linger.ms", "5")]);
        let all = options.take_all().unwrap();
        let all: Vec<_> = all.iter().map(|(name, value)| (&**name, &***value)).collect();
        assert_eq!(all, [("linger.ms", "5"), ("sasl.password", "p w")]);
    }
}
