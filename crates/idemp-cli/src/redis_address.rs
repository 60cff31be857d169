//! What every address of a Redis or Valkey server has: `redis://[USER@]HOST[:PORT][/DB]?OPTIONS`.

use std::path::Path;
use std::time::Duration;

use crate::address::{Address, Login, Options};
use crate::exit::Failure;

/// A server's address without what is secret, and the options that are left.
pub(crate) struct RedisAddress {
    /// `redis://HOST:PORT/DB`, or `rediss://` for TLS.
    pub(crate) url: String,
    pub(crate) login: Login,
    pub(crate) cluster: bool,
    pub(crate) connect_timeout: Duration,
    ca: Option<String>,
    pub(crate) options: Options,
}

impl RedisAddress {
    /// Takes `password_env`, `password_file`, `cluster` and `ca` out of the options.
    ///
    /// # Errors
    /// If a password stands in the open, or an option is wrong.
    pub(crate) fn take(address: Address) -> Result<Self, Failure> {
        let mut address = address;
        let login = address.take_login()?;
        let Address {
            scheme, mut options, ..
        } = address;
        Ok(Self {
            url: format!("{scheme}://{}", login.place),
            login,
            cluster: options.take_parsed("cluster", "true or false")?.unwrap_or(false),
            connect_timeout: Duration::from_secs(3),
            ca: options.take("ca"),
            options,
        })
    }

    /// The option `stream`, which has to be there.
    ///
    /// # Errors
    /// If it is not.
    pub(crate) fn stream(&mut self) -> Result<String, Failure> {
        self.options
            .take("stream")
            .ok_or_else(|| Failure::usage("no stream: add ?stream=NAME"))
    }

    /// The certificates of the option `ca`, in PEM.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn root_certificates(&self) -> Result<Vec<u8>, Failure> {
        let Some(path) = self.ca.as_deref().map(Path::new) else {
            return Ok(Vec::new());
        };
        std::fs::read(path)
            .map_err(|error| Failure::usage(format_args!("ca: cannot read {}", path.display())).because(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> Result<RedisAddress, Failure> {
        RedisAddress::take(Address::parse(text).unwrap())
    }

    #[test]
    fn an_address_is_taken_apart() {
        let mut address = take("rediss://a%20b@h:6379/2?stream=s&cluster=true").unwrap();
        assert_eq!(address.url, "rediss://h:6379/2");
        assert_eq!(address.login.username.as_deref(), Some("a b"));
        assert!(address.cluster && address.login.password.is_none());
        assert_eq!(address.stream().unwrap(), "s");
        assert!(address.stream().is_err());
    }

    #[test]
    fn a_password_in_the_open_is_refused() {
        for text in [
            "redis://me:hunter2@h/0?stream=s",
            "redis://h/0?stream=s&password=hunter2",
        ] {
            let failure = format!("{:?}", take(text).err().unwrap());
            assert!(
                failure.contains("password_env") && !failure.contains("hunter2"),
                "{failure}"
            );
        }
        assert!(take("redis://h/0?stream=s&cluster=maybe").is_err());
    }
}
