//! Stands before the receiver and does to each copy of an event what the plan says.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use idemp_core::{Message, headers};
use serde::Deserialize;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::line::Line;
use super::plan::{Fault, Plan};
use super::times::{HELD_UP, LATE};

/// The most that is read of a request or a reply, in bytes.
const LIMIT: usize = 1 << 20;

/// What the handler is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Take the effect.
    Quick,
    /// Take it after a while.
    Slow,
    /// Fail without it.
    Fail,
}

/// Deals the faults of a plan to the copies that arrive, and counts.
#[derive(Debug)]
pub(super) struct Mischief {
    deal: Mutex<Deal>,
    /// Copies that are on their way to the handler or back, also those whose sender has gone.
    under_way: TaskTracker,
}

#[derive(Debug)]
struct Deal {
    /// By key, in the order of arrival.
    left: HashMap<String, VecDeque<Fault>>,
    met: BTreeMap<Fault, u64>,
    duplicates: u64,
}

impl Mischief {
    pub(super) fn new(plan: &Plan, events: &[Message]) -> Self {
        let left = events.iter().enumerate().map(|(index, event)| {
            let faults = plan.faults(index).iter().copied().collect();
            (event.key().as_str().to_owned(), faults)
        });
        let deal = Deal {
            left: left.collect(),
            met: BTreeMap::new(),
            duplicates: 0,
        };
        Self {
            deal: Mutex::new(deal),
            under_way: TaskTracker::new(),
        }
    }

    /// How often each fault has happened.
    pub(super) fn met(&self) -> BTreeMap<Fault, u64> {
        self.lock().met.clone()
    }

    /// How many copies the receiver has answered with `duplicate`, whether the sender heard it or not.
    pub(super) fn duplicates(&self) -> u64 {
        self.lock().duplicates
    }

    /// Waits for the copies that are still under way. New ones may come all the same.
    pub(super) async fn settle(&self) {
        self.under_way.close();
        self.under_way.wait().await;
    }

    fn next_fault(&self, headers: &HeaderMap) -> Option<Fault> {
        let key = headers.get(headers::lower::IDEMPOTENCY_KEY)?.to_str().ok()?;
        let mut deal = self.lock();
        let fault = deal.left.get_mut(key)?.pop_front()?;
        *deal.met.entry(fault).or_default() += 1;
        Some(fault)
    }

    /// Gives the copy to the receiver after `delay`, in a task of its own: a sender that has gone takes nothing along.
    async fn pass(self: &Arc<Self>, request: Request, next: Next, work: Work, delay: Duration) -> Response {
        self.start(request, next, work, delay)
            .await
            .unwrap_or_else(|_| empty(StatusCode::INTERNAL_SERVER_ERROR))
    }

    fn start(
        self: &Arc<Self>,
        mut request: Request,
        next: Next,
        work: Work,
        delay: Duration,
    ) -> tokio::task::JoinHandle<Response> {
        request.extensions_mut().insert(work);
        let this = Arc::clone(self);
        self.under_way.spawn(async move {
            sleep(delay).await;
            this.count(next.run(request).await).await
        })
    }

    /// Reads what the receiver replies.
    async fn count(&self, reply: Response) -> Response {
        #[derive(Deserialize)]
        struct Reply {
            status: String,
        }

        let (parts, body) = reply.into_parts();
        let body = to_bytes(body, LIMIT).await.unwrap_or_default();
        if serde_json::from_slice::<Reply>(&body).is_ok_and(|reply| reply.status == "duplicate") {
            self.lock().duplicates += 1;
        }
        Response::from_parts(parts, Body::from(body))
    }

    fn lock(&self) -> MutexGuard<'_, Deal> {
        self.deal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The middleware before the receiver.
pub(super) async fn misbehave(
    State(mischief): State<Arc<Mischief>>,
    ConnectInfo(line): ConnectInfo<Line>,
    request: Request,
    next: Next,
) -> Response {
    let fault = mischief.next_fault(request.headers());
    let hang_up = || {
        line.cut();
        empty(StatusCode::NO_CONTENT)
    };
    match fault {
        Some(Fault::Unavailable) => return empty(StatusCode::SERVICE_UNAVAILABLE),
        Some(Fault::RateLimited) => return (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")]).into_response(),
        Some(Fault::HangUpBefore) => return hang_up(),
        _ => {}
    }
    // The copy is here as a whole, so that it can go on without its sender.
    let Ok(request) = read_whole(request).await else {
        return empty(StatusCode::BAD_REQUEST);
    };
    match fault {
        Some(Fault::HangUpDuring) => {
            mischief.start(request, next, Work::Slow, Duration::ZERO);
            hang_up()
        }
        Some(Fault::HangUpAfter) => {
            mischief.pass(request, next, Work::Quick, Duration::ZERO).await;
            hang_up()
        }
        Some(Fault::SlowReply) => {
            let reply = mischief.pass(request, next, Work::Quick, Duration::ZERO).await;
            sleep(LATE).await;
            reply
        }
        Some(Fault::LateCopy) => mischief.pass(request, next, Work::Quick, HELD_UP).await,
        Some(Fault::SlowHandler) => mischief.pass(request, next, Work::Slow, Duration::ZERO).await,
        Some(Fault::HandlerFails) => mischief.pass(request, next, Work::Fail, Duration::ZERO).await,
        _ => mischief.pass(request, next, Work::Quick, Duration::ZERO).await,
    }
}

async fn read_whole(request: Request) -> Result<Request, axum::Error> {
    let (parts, body) = request.into_parts();
    Ok(Request::from_parts(parts, Body::from(to_bytes(body, LIMIT).await?)))
}

fn empty(status: StatusCode) -> Response {
    status.into_response()
}
