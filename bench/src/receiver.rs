//! Signed events into the receiver, and into a bare axum handler that reads the body; and into FastAPI.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::{post, post_service};
use bytes::Bytes;
use idemp_core::{Secret, Secrets, Signer};
use idemp_receiver::{Event, MemoryStore, Receiver, ReceiverConfig, ReceiverLayer};
use tokio::runtime::Runtime;

use crate::claims;
use crate::corpus::Numbered;
use crate::fastapi::FastApi;
use crate::load::{self, OK, PATH};
use crate::local::{self, Server};
use crate::measure::{Both, Pairs};
use crate::report::{Bench, Target, Unit};

const ROUNDS: usize = 15;

/// For FastAPI.
const FEW_ROUNDS: usize = 7;
const CONNECTIONS: usize = 64;
const EVENTS: usize = 10_000;

/// For FastAPI, so that its samples take no longer.
const FEW_EVENTS: usize = 1_000;

const SECRET: &str = "whsec_benchmark_secret";

pub(crate) fn run() -> anyhow::Result<Bench> {
    let runtime = local::runtime()?;
    let mut bench = Bench::new(
        "receiver",
        format!("memory store, every event new, {CONNECTIONS} connections, {EVENTS} events a sample"),
    );
    let service = runtime.block_on(Server::start(service()?))?;
    let layer = runtime.block_on(Server::start(layer()?))?;
    let bare = runtime.block_on(Server::start(bare()))?;
    let target = Some(Target::SpeedAtLeast(0.8));
    let sides = [("", &service, target), (", behind the layer", &layer, None)];
    for (name, events) in bodies()? {
        let events = Source::new(&runtime, events)?;
        for (how, ours, target) in &sides {
            let pairs = Pairs::take(
                ROUNDS,
                || events.sample(ours.address, EVENTS),
                || events.sample(bare.address, EVENTS),
            )?;
            let unit = Unit::EventsPerSecond(1);
            bench.compare(format!("{name}{how}: bare axum handler"), &pairs.clock(), unit, *target);
            bench.compare("  the same, in processor time", &pairs.processor(), unit, None);
        }
    }
    beside_fastapi(&mut bench, &runtime, service.address)?;
    claims::add(&mut bench, &runtime)?;
    Ok(bench)
}

fn beside_fastapi(bench: &mut Bench, runtime: &Runtime, ours: SocketAddr) -> anyhow::Result<()> {
    let fastapi = match FastApi::start(SECRET) {
        Ok(fastapi) => fastapi,
        Err(error) => {
            bench.skip(format_args!("FASTAPI: {error:#}"));
            return Ok(());
        }
    };
    for (name, events) in bodies()? {
        let events = Source::new(runtime, events)?;
        let pairs = Pairs::take(
            FEW_ROUNDS,
            || events.sample(ours, EVENTS),
            || events.sample(fastapi.address, FEW_EVENTS),
        )?;
        let target = Some(Target::SpeedAtLeast(5.0));
        let unit = Unit::EventsPerSecond(1);
        bench.compare(format!("{name}: FastAPI"), &pairs.clock(), unit, target);
    }
    bench.fact(
        "FastAPI",
        format!("{}, one process; Redis without persistence", fastapi.version),
    );
    Ok(())
}

fn bodies() -> anyhow::Result<[(&'static str, Numbered); 2]> {
    Ok([
        ("600-byte body", Numbered::of_length(600)?),
        ("recorded bodies", Numbered::recorded()?),
    ])
}

/// Makes signed requests, none twice.
struct Source<'s> {
    runtime: &'s Runtime,
    events: Numbered,
    signer: Signer,
}

impl<'s> Source<'s> {
    fn new(runtime: &'s Runtime, events: Numbered) -> anyhow::Result<Self> {
        Ok(Self {
            runtime,
            events,
            signer: Signer::new(&Secret::new(SECRET)?),
        })
    }

    /// Seconds for one event, over `count` new ones that are signed beforehand.
    fn sample(&self, address: SocketAddr, count: usize) -> anyhow::Result<Both> {
        let messages = self.events.take(count)?;
        let requests: Vec<Vec<u8>> = messages
            .iter()
            .map(|message| load::request(message, &self.signer))
            .collect();
        let both = local::timed(self.runtime, load::send(address, CONNECTIONS, Arc::new(requests)))?;
        Ok(both.divided_by(count))
    }
}

fn receiver() -> anyhow::Result<Receiver> {
    let secrets = Secrets::from(Secret::new(SECRET)?);
    Ok(Receiver::new(MemoryStore::new(), &secrets, ReceiverConfig::default())?)
}

fn service() -> anyhow::Result<Router> {
    let handler = async |event: Event| {
        drop(event);
        Ok(())
    };
    Ok(Router::new().route(PATH, post_service(receiver()?.service(handler))))
}

fn layer() -> anyhow::Result<Router> {
    let handler = async |event: Event| drop(event);
    let layer = ReceiverLayer::new(receiver()?);
    Ok(Router::new().route(PATH, post(handler).route_layer(layer)))
}

fn bare() -> Router {
    let handler = async |body: Bytes| {
        drop(body);
        OK
    };
    Router::new().route(PATH, post(handler))
}
