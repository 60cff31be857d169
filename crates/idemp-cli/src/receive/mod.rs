//! `idemp receive`: serves one webhook, or consumes from a broker, and appends each event once to a file.

mod consumers;
mod out;
#[cfg(any(feature = "kafka", feature = "redis"))]
mod quarantine;
pub(crate) mod store;

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::{get, post_service};
use futures_util::future::BoxFuture;
use idemp_core::Cadence;
use idemp_receiver::{Event, HandlerError, Receiver, ReceiverConfig, Scope};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, complain, say};
use crate::secret::AcceptedSecrets;
use crate::{runtime, signals, times};
use consumers::{Consumer, ConsumerArgs, Handler};
use out::Out;
use store::StoreArg;

const HEALTH: &str = "/healthz";

/// How long connections may take to end once we are asked to. A handler has 4 s at most.
const SHUTDOWN: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The address to listen on; port 0 takes a free one and prints it
    #[arg(long, value_name = "ADDR", required_unless_present_any = ["kafka", "redis_stream", "topic"], value_parser = socket)]
    listen: Option<SocketAddr>,

    #[command(flatten)]
    consumers: ConsumerArgs,

    #[command(flatten)]
    secrets: AcceptedSecrets,

    /// Where claims are kept: memory, or to survive a restart sqlite:PATH, `redis://[USER@]HOST:PORT/DB` or
    /// `postgres://[USER@]HOST:PORT/DATABASE`
    #[arg(long, value_name = "STORE", default_value = "memory", value_parser = StoreArg::parse)]
    store: StoreArg,

    /// Append events to this file (default: standard output)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// The path of the webhook
    #[arg(long, value_name = "PATH", default_value = "/webhooks/langchain", value_parser = route)]
    path: String,

    /// Take only requests with good Standard Webhooks headers, which cover key and time as well as the body
    #[arg(long)]
    require_standard_webhooks: bool,

    /// Keeps these events apart from others in the same store
    #[arg(long, value_name = "NAME", value_parser = Scope::named)]
    scope: Option<Scope>,

    /// How long a processed event is remembered (default: what --cadence says)
    #[arg(long, value_name = "D", value_parser = times::duration, conflicts_with = "cadence")]
    ttl: Option<Duration>,

    /// How often the senders' runs come: an event is remembered for 24 hours, 7 or 30 days
    #[arg(long, value_name = "HOW", default_value = "sub-minute")]
    cadence: CadenceName,

    /// How long a claim holds without news of its owner; after a crash copies are put off for so long
    #[arg(long, value_name = "D", default_value = "6s", value_parser = times::duration)]
    lease: Duration,

    /// The largest body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024)]
    max_body: usize,
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let secrets = args.secrets.load()?;
    let config = config(args)?;
    let out = match &args.out {
        Some(path) => Out::append_to(path)?,
        None => Out::stdout()?,
    };
    runtime()?.block_on(async {
        let stop = signals::watch("stopping")?;
        let store = args.store.open().await?;
        let receiver =
            Receiver::new(store, &secrets, config).map_err(|error| Failure::usage("configuration").because(&error))?;
        let reader_gone = out.reader_gone().clone();
        let handler = handler(out);
        let consumers = args.consumers.consumers(&receiver, &handler, &stop).await?;
        let mut work: Vec<Consumer> = Vec::new();
        if let Some(listen) = args.listen {
            let cannot =
                |error: std::io::Error| Failure::usage(format_args!("cannot listen on {listen}")).because(&error);
            let listener = TcpListener::bind(listen).await.map_err(cannot)?;
            let address = listener.local_addr().map_err(cannot)?;
            // Scripts wait for this line.
            say(format_args!("listening on http://{address}"));
            work.push(Box::pin(serve(
                listener,
                router(args, &receiver, handler),
                stop.clone(),
            )));
        }
        if !consumers.is_empty() {
            say("consuming");
        }
        work.extend(consumers);
        tokio::spawn({
            let (stop, reader_gone) = (stop.clone(), reader_gone.clone());
            async move {
                reader_gone.cancelled().await;
                stop.cancel();
            }
        });
        // Whoever ends, all end.
        let work = work.into_iter().map(|work| async {
            let ended = work.await;
            stop.cancel();
            ended
        });
        let ended = futures_util::future::join_all(work).await;
        // Handlers run in tasks of their own, and some of their clients may have hung up.
        receiver.close().await;
        ended.into_iter().collect::<Result<(), Failure>>()?;
        if reader_gone.is_cancelled() {
            return Err(Failure::failed(
                "nobody reads standard output any more: what could not be written there is not taken",
            ));
        }
        Ok(Exit::Done)
    })
}

fn config(args: &Args) -> Result<ReceiverConfig, Failure> {
    let config = ReceiverConfig {
        scope: args.scope.clone().unwrap_or_default(),
        ttl: args.ttl.unwrap_or_else(|| Cadence::from(args.cadence).ttl()),
        lease: args.lease,
        body_limit: args.max_body,
        require_standard_webhooks: args.require_standard_webhooks,
        ..ReceiverConfig::default()
    };
    config
        .check()
        .map_err(|error| Failure::usage("configuration").because(&error))?;
    Ok(config)
}

fn handler(out: Out) -> impl Handler {
    move |event: Event| -> BoxFuture<'static, Result<(), HandlerError>> {
        let out = out.clone();
        Box::pin(async move {
            out.write(&event).await.map_err(|error| {
                // Of a reader that is gone it is told once, at the end.
                if !out.reader_gone().is_cancelled() {
                    tracing::error!(key = event.key(), %error, "an event could not be written");
                }
                HandlerError::Failed
            })
        })
    }
}

fn router(args: &Args, receiver: &Receiver, handler: impl Handler) -> Router {
    let health = || async { ([(CONTENT_TYPE, "application/json")], r#"{"status":"ok"}"#) };
    Router::new()
        .route(&args.path, post_service(receiver.service(handler)))
        .route(HEALTH, get(health))
}

/// Serves until asked to stop; then lets requests in flight end.
async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> Result<(), Failure> {
    let server = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN).await;
    };
    tokio::select! {
        served = server.into_future() => served.map_err(|error| Failure::failed("cannot serve").because(&error)),
        () = overdue => {
            complain("warning: some connections did not end in time");
            Ok(())
        }
    }
}

/// How often the senders' runs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CadenceName {
    /// Per call: remembered for 24 hours
    SubMinute,
    /// Per run: remembered for 7 days
    SubHour,
    /// Summaries: remembered for 30 days
    Daily,
}

impl From<CadenceName> for Cadence {
    fn from(name: CadenceName) -> Self {
        match name {
            CadenceName::SubMinute => Self::SubMinute,
            CadenceName::SubHour => Self::SubHour,
            CadenceName::Daily => Self::Daily,
        }
    }
}

/// An address as the operating system takes it: a name could stand for several.
fn socket(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "not IP:PORT, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080")
}

/// A path that the router takes as it is.
fn route(path: &str) -> Result<String, &'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    if !path.starts_with('/') || !path.bytes().all(plain) {
        Err("not a / followed by letters, digits, / - . _ ~")
    } else if path == HEALTH {
        Err("taken by the health check")
    } else {
        Ok(path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_plain() {
        assert_eq!(route("/webhooks/langchain"), Ok("/webhooks/langchain".to_owned()));
        for path in ["", "webhooks", "/healthz", "/{id}", "/*a", "/:a", "/a?b", "/a b"] {
            assert!(route(path).is_err(), "{path}");
        }
    }
}
