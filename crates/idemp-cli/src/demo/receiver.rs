//! The receiver of the demo: the real one, over HTTP on the loopback interface, with its claims in an SQLite file.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::post;
use axum::{Extension, Router};
use idemp_core::{RetrySchedule, Secret};
use idemp_receiver::{Event, HandlerError, Receiver, ReceiverConfig, ReceiverLayer, SqliteStore};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::line::{Line, Lines};
use super::mischief::{Mischief, Work, misbehave};
use super::times::{ATTEMPT, HANDLER_CAP, LEASE, WORK};
use crate::exit::Failure;

pub(super) const PATH: &str = "/webhooks/langchain";

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 128;

/// How long the server may take to end.
const STOP: Duration = Duration::from_secs(5);

/// All that a receiver is made of, to start it more than once.
pub(super) struct Site {
    pub(super) secret: Secret,
    pub(super) claims: PathBuf,
    pub(super) schedule: RetrySchedule,
    pub(super) ledger: Arc<Ledger>,
    pub(super) mischief: Arc<Mischief>,
}

/// A receiver that is down: its port is taken, and connections are refused.
pub(super) struct Down {
    site: Site,
    socket: TcpSocket,
    address: SocketAddr,
}

/// A receiver that is up.
pub(super) struct Up {
    site: Site,
    address: SocketAddr,
    receiver: Receiver,
    stop: CancellationToken,
    serving: JoinHandle<io::Result<()>>,
}

impl Down {
    /// Takes a free port.
    pub(super) fn new(site: Site) -> Result<Self, Failure> {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let cannot = |error: io::Error| Failure::failed("cannot open a port at 127.0.0.1").because(&error);
        let socket = bind(free).map_err(cannot)?;
        Ok(Self {
            site,
            address: socket.local_addr().map_err(cannot)?,
            socket,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens the claims and listens.
    pub(super) fn start(self) -> Result<Up, Failure> {
        let Self { site, socket, address } = self;
        let cannot = |error: &dyn std::error::Error| Failure::failed("cannot start the receiver").because(error);
        let claims = SqliteStore::open(&site.claims).map_err(|error| cannot(&error))?;
        let config = ReceiverConfig {
            lease: LEASE,
            handler_cap: HANDLER_CAP,
            retry_budget: site.schedule.budget(),
            attempt_timeout: ATTEMPT,
            require_canonical: true,
            ..ReceiverConfig::default()
        };
        let receiver = Receiver::new(claims, &site.secret.clone().into(), config).map_err(|error| cannot(&error))?;
        let listener = socket.listen(BACKLOG).map_err(|error| cannot(&error))?;
        let routes = Router::new()
            .route(PATH, post(handle).layer(ReceiverLayer::new(receiver.clone())))
            .layer(from_fn_with_state(Arc::clone(&site.mischief), misbehave))
            .with_state(Arc::clone(&site.ledger));
        let stop = CancellationToken::new();
        let server = axum::serve(Lines(listener), routes.into_make_service_with_connect_info::<Line>())
            .with_graceful_shutdown(stop.clone().cancelled_owned());
        Ok(Up {
            site,
            address,
            receiver,
            stop,
            serving: tokio::spawn(server.into_future()),
        })
    }
}

impl Up {
    /// Stops in order: what has arrived is handled, also what is held up on its way. From then on connections are
    /// refused.
    pub(super) async fn stop(mut self) -> Result<Down, Failure> {
        self.stop.cancel();
        if timeout(STOP, &mut self.serving).await.is_err() {
            return Err(Failure::failed("the receiver does not stop"));
        }
        // Bound and not listening, the port refuses connections and nobody else gets it.
        let socket = bind(self.address).map_err(|error| Failure::failed("lost the receiver's port").because(&error))?;
        self.site.mischief.settle().await;
        self.receiver.drain().await;
        Ok(Down {
            site: self.site,
            socket,
            address: self.address,
        })
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    // Connections of before may linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// The application's handler: takes the effect and says so to the ledger.
async fn handle(
    State(ledger): State<Arc<Ledger>>,
    Extension(work): Extension<Work>,
    event: Event,
) -> Result<StatusCode, HandlerError> {
    match work {
        Work::Quick => {}
        Work::Slow => sleep(WORK).await,
        Work::Fail => return Err(HandlerError::Failed),
    }
    ledger.take_effect(event.key(), event.body());
    Ok(StatusCode::NO_CONTENT)
}
