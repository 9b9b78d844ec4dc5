//! What does `TollgateLayer` add to a request, beside its gate asked without it?
//!
//! `cargo bench -p tollgate-benches --bench layer`
//!
//! Both ask the same gate on one private server in turns. The median of nine turns counts. The service behind the layer
//! does nothing and there is no socket, so the difference is the layer: the key, the request's way through, the header
//! fields. Refusals from memory ask no database and show it best. Absolute figures are this machine's.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures spans on this machine's monotonic clock")]

mod support;

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::{Request, Response};
use tollgate::{Gate, HOUR, Limit, MINUTE};
use tollgate_embedded::Server;
use tollgate_http::tower::{Body, PeerAddr, TollgateLayer, TollgateService};
use tower::{Layer, Service, ServiceExt, service_fn};

use support::{Fault, median, migrated};

/// Never exhausted: every call is granted and saved.
const GRANTED: Limit = Limit::token_bucket("granted", 1_000_000_000, HOUR).ephemeral();
/// Exhausted by the first call.
const REFUSED: Limit = Limit::fixed_window("refused", 1, Limit::MAX_PERIOD).ephemeral();

fn main() -> Result<(), Fault> {
    let server = Server::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let gate = Gate::builder(migrated(server.url(), 10).await?).remember_refusals(MINUTE).build();
        println!("{:<22} {:>12} {:>12} {:>12} {:>7}", "", "gate ns", "layer ns", "difference", "ratio");
        measure("granted, 1 caller", &gate, &GRANTED, 1, 300).await?;
        measure("granted, 64 callers", &gate, &GRANTED, 64, 100).await?;
        measure("refused from memory", &gate, &REFUSED, 1, 50_000).await
    })
}

/// Nanoseconds for each request of so many callers, who all make so many.
async fn measure(name: &str, gate: &Gate, limit: &Limit, callers: u32, requests: u32) -> Result<(), Fault> {
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let service = TollgateLayer::new(gate.clone()).limit(limit.clone()).layer(inner);
    let (mut bare, mut behind) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let asking = || ask(gate.clone(), limit.clone(), requests);
        bare.push(time(callers, requests, asking).await?);
        behind.push(time(callers, requests, || serve(service.clone(), requests)).await?);
    }
    let (bare, behind) = (median(bare), median(behind));
    println!("{name:<22} {bare:>12.0} {behind:>12.0} {:>12.0} {:>7.2}", behind - bare, behind / bare);
    Ok(())
}

async fn time<F>(callers: u32, requests: u32, caller: impl Fn() -> F) -> Result<f64, Fault>
where
    F: Future<Output = Result<(), tollgate::Error>> + Send + 'static,
{
    let started = Instant::now();
    let tasks: Vec<_> = (0..callers).map(|_| tokio::spawn(caller())).collect();
    for task in tasks {
        task.await??;
    }
    Ok(nanos(started.elapsed()) / f64::from(callers * requests))
}

async fn ask(gate: Gate, limit: Limit, requests: u32) -> Result<(), tollgate::Error> {
    for _ in 0..requests {
        // Granted or refused: what counts here is how long it takes.
        let _ = gate.consume(limit.key(("ip", "192.0.2.1"))).await?.is_granted();
    }
    Ok(())
}

async fn serve<S, R>(mut service: TollgateService<S, R>, requests: u32) -> Result<(), tollgate::Error>
where
    TollgateService<S, R>: Service<Request<()>, Response = Response<Body<String>>, Error = Infallible>,
{
    for _ in 0..requests {
        let mut request = Request::new(());
        request.extensions_mut().insert(PeerAddr(SocketAddr::from(([192, 0, 2, 1], 4711))));
        let Ok(service) = service.ready().await;
        let Ok(_) = service.call(request).await;
    }
    Ok(())
}

fn nanos(span: Duration) -> f64 {
    span.as_secs_f64() * 1e9
}

const TURNS: usize = 9;
