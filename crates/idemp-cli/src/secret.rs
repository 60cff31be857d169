//! Secrets from the environment or from files, never from the command line.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use idemp_core::{Secret, Secrets};
use zeroize::Zeroizing;

use crate::exit::{Failure, complain};
use crate::shell::Line;

/// The one secret that signs.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "secret", required = true, multiple = false)]
pub(crate) struct SigningSecret {
    /// The environment variable that holds the secret
    #[arg(long, value_name = "NAME")]
    secret_env: Option<OsString>,

    /// The file that holds the secret; one line end at its end is not part of it
    #[arg(long, value_name = "PATH")]
    secret_file: Option<PathBuf>,
}

impl SigningSecret {
    /// Reads the secret.
    ///
    /// # Errors
    /// If it is missing or empty. The error names the variable or file, never the value.
    pub(crate) fn load(&self) -> Result<Secret, Failure> {
        load(self.secret_env.as_ref(), self.secret_file.as_deref())
    }
}

/// The one secret that signs, where `--config` may name others.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "secret", multiple = false, conflicts_with = "config")]
pub(crate) struct SinkSecret {
    /// The environment variable that holds the secret
    #[arg(long, value_name = "NAME", required_unless_present_any = ["secret_file", "config"])]
    secret_env: Option<OsString>,

    /// The file that holds the secret; one line end at its end is not part of it
    #[arg(long, value_name = "PATH")]
    secret_file: Option<PathBuf>,
}

impl SinkSecret {
    /// Adds where the secret is to a command that comes next. It was read from there, so what stands there is a name.
    pub(crate) fn say_again(&self, line: &mut Line) {
        if let Some(name) = &self.secret_env {
            line.option("--secret-env", &name.to_string_lossy());
        }
        if let Some(path) = &self.secret_file {
            line.option("--secret-file", &path.to_string_lossy());
        }
    }

    /// Reads the secret.
    ///
    /// # Errors
    /// If it is missing or empty. The error names the variable or file, never the value.
    pub(crate) fn load(&self) -> Result<Secret, Failure> {
        load(self.secret_env.as_ref(), self.secret_file.as_deref())
    }
}

fn load(variable: Option<&OsString>, file: Option<&Path>) -> Result<Secret, Failure> {
    match (variable, file) {
        (Some(name), _) => from_env(name),
        (None, Some(path)) => from_file(path),
        (None, None) => Err(Failure::usage("no secret: give --secret-env or --secret-file")),
    }
}

/// The secret of a sink in `idemp.toml`, which is named there in the same two ways.
///
/// # Errors
/// If it is missing or empty. The error names the variable or file, never the value.
pub(crate) fn named(variable: Option<&str>, file: Option<&Path>) -> Result<Secret, Failure> {
    match (variable, file) {
        (Some(_), Some(_)) => Err(Failure::usage("secret_env and secret_file: give one of them")),
        (Some(name), None) => from_env(&variable_name("secret_env", Some(name))?.into()),
        (None, Some(path)) => from_file(path),
        (None, None) => Err(Failure::usage("no secret: give secret_env or secret_file")),
    }
}

/// The secrets that are accepted: while one is being replaced there are two.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "secrets", required = true, multiple = true)]
pub(crate) struct AcceptedSecrets {
    /// An environment variable that holds a secret; may be repeated, any of them may have signed
    #[arg(long, value_name = "NAME")]
    secret_env: Vec<OsString>,

    /// A file that holds a secret, one line end at its end not counted; may be repeated
    #[arg(long, value_name = "PATH")]
    secret_file: Vec<PathBuf>,
}

impl AcceptedSecrets {
    /// Reads the secrets.
    ///
    /// # Errors
    /// If one is missing or empty. The error names the variable or file, never the value.
    pub(crate) fn load(&self) -> Result<Secrets, Failure> {
        let from_env = self.secret_env.iter().map(from_env);
        let from_file = self.secret_file.iter().map(|path| from_file(path));
        let secrets = from_env.chain(from_file).collect::<Result<_, _>>()?;
        Secrets::new(secrets).map_err(|error| Failure::usage("no secret").because(&error))
    }
}

fn from_env(name: &OsString) -> Result<Secret, Failure> {
    let name = variable_name("--secret-env", name.to_str())?;
    let value = value_of(name)?;
    warn(&value, format_args!("variable {name}"));
    Secret::labelled(name, value).map_err(|_empty| Failure::usage(format_args!("no secret: variable {name} is empty")))
}

/// A secret text, such as a password, from an environment variable. `option` says where the variable's name stood.
///
/// # Errors
/// If the variable is missing, empty or not UTF-8. The error names the variable, never the value.
pub(crate) fn text_from_env(option: &str, name: &str) -> Result<Zeroizing<String>, Failure> {
    let name = variable_name(option, Some(name))?;
    text(value_of(name)?, format_args!("variable {name}"))
}

/// A secret text from a file, one line end at its end not counted.
///
/// # Errors
/// If the file cannot be read, is empty or not UTF-8. The error names the file, never the value.
pub(crate) fn text_from_file(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let mut bytes = read(path)?;
    strip_line_end(&mut bytes);
    text(std::mem::take(&mut *bytes), format_args!("file {}", path.display()))
}

fn text(bytes: Vec<u8>, place: std::fmt::Arguments<'_>) -> Result<Zeroizing<String>, Failure> {
    warn(&bytes, place);
    match String::from_utf8(bytes).map(Zeroizing::new) {
        Ok(text) if !text.is_empty() => Ok(text),
        Ok(_) => Err(Failure::usage(format_args!("no secret: {place} is empty"))),
        Err(error) => {
            drop(Zeroizing::new(error.into_bytes()));
            Err(Failure::usage(format_args!("{place} is not UTF-8")))
        }
    }
}

fn variable_name<'n>(option: &str, name: Option<&'n str>) -> Result<&'n str, Failure> {
    // What is no name may be the secret itself, given by mistake: it must not be printed.
    name.filter(|name| is_variable_name(name)).ok_or_else(|| {
        Failure::usage(format_args!(
            "{option} takes the name of an environment variable, not the secret"
        ))
    })
}

fn value_of(name: &str) -> Result<Vec<u8>, Failure> {
    let value = env::var_os(name);
    value
        .map(OsString::into_vec)
        .ok_or_else(|| Failure::usage(format_args!("no secret: variable {name} is not set")))
}

fn is_variable_name(name: &str) -> bool {
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts_well && !name.starts_with("whsec_") && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn from_file(path: &Path) -> Result<Secret, Failure> {
    let shown = path.display();
    let mut bytes = read(path)?;
    strip_line_end(&mut bytes);
    warn(&bytes, format_args!("file {shown}"));
    // The copy is exact, so that nothing is left behind in memory that was given back.
    Secret::labelled(shown.to_string(), bytes.as_slice())
        .map_err(|_empty| Failure::usage(format_args!("no secret: file {shown} is empty")))
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let cannot = |error| Failure::usage(format_args!("cannot read secret file {}", path.display())).because(&error);
    fs::read(path).map(Zeroizing::new).map_err(cannot)
}

/// Says, once for each place, that a secret has something at its ends that is hard to see and hardly ever meant.
fn warn(secret: &[u8], place: std::fmt::Arguments<'_>) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

    let Some(what) = unlikely_end(secret) else { return };
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if warned.insert(place.to_string()) {
        complain(format_args!(
            "warning: the secret in {place} {what}, taken as a part of it"
        ));
    }
}

fn unlikely_end(secret: &[u8]) -> Option<&'static str> {
    // UTF-8, and UTF-16 of either order.
    let marks: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];
    let is_blank = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_whitespace);
    if marks.iter().any(|mark| secret.starts_with(mark)) {
        Some("begins with a byte order mark")
    } else if is_blank(secret.first()) {
        Some("begins with a blank or a line end")
    } else if is_blank(secret.last()) {
        Some("ends with a blank or a line end")
    } else {
        None
    }
}

/// Takes off one `\n` or `\r\n`.
fn strip_line_end(bytes: &mut Vec<u8>) {
    for end in [b'\n', b'\r'] {
        match bytes.pop() {
            Some(last) if last == end => {}
            Some(last) => return bytes.push(last),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_stripped() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"s", b"s"),
            (b"s\n", b"s"),
            (b"s\r\n", b"s"),
            (b"s\n\n", b"s\n"),
            (b"s\r", b"s\r"),
            (b" s ", b" s "),
            (b"\n", b""),
            (b"", b""),
        ];
        for (file, secret) in cases {
            let mut bytes = file.to_vec();
            strip_line_end(&mut bytes);
            assert_eq!(bytes, secret, "{file:?}");
        }
    }

    #[test]
    fn what_looks_like_a_secret_is_no_name() {
        for name in ["IDEMP_SECRET", "_x", "a1"] {
            assert!(is_variable_name(name), "{name}");
        }
        for name in ["", "1a", "a b", "a=b", "c2VjcmV0+/", "whsec_C2FVsBQIhrsc", "é"] {
            assert!(!is_variable_name(name), "{name}");
        }
    }
}
