//! Asking the workers how they are, and what happened to their caches.

use std::sync::{Arc, PoisonError};

use axum::http::{Method, StatusCode};
use bytes::Bytes;
use pb_kv::BlockHash;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use super::client::{self, LegError};
use super::naming::{Naming, digest};
use super::shell::{Shared, draining};
use crate::index::{CacheChange, CacheEvent, EventPage, Intake};
use crate::worker::{Pool, WorkerId, WorkerSpec};

/// What a worker says of itself.
#[derive(Debug, Deserialize)]
struct WorkerInfo {
    role: Option<String>,
    block_size: Option<usize>,
    blocks_total: Option<usize>,
    kv_host: Option<String>,
    kv_port: Option<u16>,
    kv_stream_min_tokens: Option<usize>,
    #[serde(default)]
    hash: Value,
}

#[derive(Debug, Deserialize)]
struct WirePage {
    engine_id: String,
    next_seq: u64,
    oldest_seq: u64,
    events: Vec<WireEvent>,
}

#[derive(Debug, Deserialize)]
struct WireEvent {
    seq: u64,
    kind: String,
    #[serde(default)]
    hashes: Vec<String>,
}

/// What the poller knows of its worker from one time to the next.
#[derive(Debug, Default)]
struct Poller {
    id: WorkerId,
    /// Whether it was introduced since it last came up.
    known: bool,
    /// Whether it reports events.
    reports: bool,
    /// What was last said of it to the operator.
    told: Option<String>,
}

/// Asks worker `id` until the server drains; `first` is told when it has been asked once.
pub(crate) async fn run(
    shared: Arc<Shared>,
    id: WorkerId,
    first: tokio::sync::oneshot::Sender<()>,
) {
    let mut ticks = interval(shared.options.poll_every_ns.to_duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut poller = Poller {
        id,
        ..Poller::default()
    };
    let mut first = Some(first);
    let mut phase = shared.phase.clone();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = draining(&mut phase) => return,
        }
        let state = poller.once(&shared).await;
        let up = state.is_ok();
        if up {
            // Before requests are sent there, which would be taken away at once.
            shared.set_out(id, false);
        }
        shared.with(|router, now| {
            let was = router.workers()[id.0 as usize].up;
            if was != up {
                router.set_up(now, id, up);
            }
            router.tick(now);
        });
        if !up {
            // After nothing is sent there any more, so that what is taken away goes elsewhere.
            shared.set_out(id, true);
        }
        poller.known &= up;
        poller.tell(&shared, state);
        if let Some(first) = first.take() {
            let _ = first.send(());
        }
    }
}

impl Poller {
    /// Tells the operator what has changed.
    fn tell(&mut self, shared: &Shared, state: Result<(), String>) {
        let now = state.err();
        if now != self.told {
            let url = shared.url(self.id);
            match &now {
                Some(why) => (shared.say)(&format!("worker {} ({url}) is out: {why}", self.id)),
                None => (shared.say)(&format!("worker {} ({url}) is back", self.id)),
            }
            self.told = now;
        }
    }

    async fn once(&mut self, shared: &Arc<Shared>) -> Result<(), String> {
        if !self.known {
            self.known = self.introduce(shared).await?;
        }
        if !self.reports {
            let (status, _) = get(shared, self.id, "/health")
                .await
                .map_err(|e| e.message)?;
            return match status {
                StatusCode::OK => Ok(()),
                status => Err(format!("/health answers {}", status.as_u16())),
            };
        }
        // A restarted engine is asked again, from the start.
        for _ in 0..2 {
            let since = shared.with(|router, _| router.next_event(self.id));
            let path = format!("/kv_events?since={since}");
            let (status, body) = get(shared, self.id, &path).await.map_err(|e| e.message)?;
            if status != StatusCode::OK {
                return Err(format!("/kv_events answers {}", status.as_u16()));
            }
            let page = page_of(&body)?;
            let intake = shared.with(|router, now| router.read_events(now, self.id, &page));
            if intake != Intake::Restarted {
                break;
            }
            self.known = false;
        }
        Ok(())
    }

    /// Finds out what kind of worker it is. False when it has requests that depend on what it was
    /// before: then it must be asked again.
    async fn introduce(&mut self, shared: &Arc<Shared>) -> Result<bool, String> {
        let (status, body) = get(shared, self.id, "/worker")
            .await
            .map_err(|e| e.message)?;
        let home = shared.options.workers[self.id.0 as usize].0;
        if status == StatusCode::NOT_FOUND {
            // Another server: it can be sent whole requests, and says nothing of its cache.
            self.reports = false;
            return able(shared, home, "none").map(|()| true);
        }
        if [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status) {
            let status = status.as_u16();
            return Err(format!(
                "/worker answers {status}: give the workers' key (--worker-api-key-env)"
            ));
        }
        if status != StatusCode::OK {
            return Err(format!("/worker answers {}", status.as_u16()));
        }
        let info: WorkerInfo = serde_json::from_slice(&body)
            .map_err(|error| format!("/worker answers what is not understood: {error}"))?;
        let role = info.role.as_deref().unwrap_or("none");
        able(shared, home, role)?;
        let block_size = info.block_size.filter(|&size| size > 0);
        let block_size = block_size.unwrap_or(shared.options.block_size);
        let naming = Naming::of(&info.hash, block_size);
        let events = get(shared, self.id, "/kv_events?since=0").await;
        self.reports = matches!(events, Ok((StatusCode::OK, _)));
        let model = model_of(shared, self.id).await;
        let mut namings = shared
            .namings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let naming = namings.number(naming);
        if namings.model.is_none() {
            namings.model = model;
        }
        drop(namings);
        let remote = info.kv_host.zip(info.kv_port);
        let spec = WorkerSpec {
            stream_min_tokens: info.kv_stream_min_tokens.filter(|_| remote.is_some()),
            flexible: role == "both",
            blocks_total: info.blocks_total,
            naming,
            ..WorkerSpec::new(home, block_size)
        };
        shared.set_remote(self.id, remote);
        Ok(shared.with(|router, _| router.set_spec(self.id, spec)))
    }
}

/// Whether a worker of this role can do what its pool is for. One without a role takes no part in
/// requests that several workers share.
fn able(shared: &Shared, home: Pool, role: &str) -> Result<(), String> {
    let workers = &shared.options.workers;
    let splits = workers.iter().any(|(pool, _)| *pool == Pool::Prefill);
    let able = match home {
        Pool::Prefill => ["prefill", "both"].contains(&role),
        Pool::Decode | Pool::Mixed if role == "none" => !splits,
        Pool::Decode => role != "prefill",
        Pool::Mixed => role == "both",
    };
    if able {
        return Ok(());
    }
    Err(format!(
        "its role is {role}, which does not do for a {} worker here (serve --role)",
        home.name()
    ))
}

/// The name of a worker's model: the first of its list.
async fn model_of(shared: &Arc<Shared>, id: WorkerId) -> Option<String> {
    let (_, body) = get(shared, id, "/v1/models").await.ok()?;
    let models: Value = serde_json::from_slice(&body).ok()?;
    Some(models["data"][0]["id"].as_str()?.to_owned())
}

/// A small request to a worker, with little patience.
async fn get(
    shared: &Arc<Shared>,
    id: WorkerId,
    path: &str,
) -> Result<(StatusCode, Vec<u8>), LegError> {
    let headers = shared.headers(None, false);
    let limits = shared.limits(shared.options.connect_timeout_ns);
    let sent = client::send(
        shared.url(id),
        Method::GET,
        path,
        &headers,
        Bytes::new(),
        limits,
    );
    let leg = sent.await?;
    Ok((leg.status, leg.whole().await?))
}

/// Reads a page of events.
fn page_of(body: &[u8]) -> Result<EventPage, String> {
    let wire: WirePage = serde_json::from_slice(body)
        .map_err(|error| format!("/kv_events answers what is not understood: {error}"))?;
    let mut events = Vec::with_capacity(wire.events.len());
    for event in wire.events {
        let blocks: Option<Vec<BlockHash>> = event
            .hashes
            .iter()
            .map(|hex| digest(hex).map(BlockHash))
            .collect();
        let blocks = blocks.ok_or("/kv_events names blocks by what is no hexadecimal")?;
        let change = match event.kind.as_str() {
            "stored" => CacheChange::Stored(blocks),
            "removed" => CacheChange::Removed(blocks),
            "cleared" => CacheChange::Cleared,
            other => return Err(format!("/kv_events has an event of the kind {other:?}")),
        };
        events.push(CacheEvent {
            seq: event.seq,
            change,
        });
    }
    Ok(EventPage {
        engine: wire.engine_id,
        oldest_seq: wire.oldest_seq,
        next_seq: wire.next_seq,
        events,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_events() {
        let body = br#"{"engine_id":"e","block_size":16,"next_seq":9,"oldest_seq":7,"events":[
            {"seq":7,"kind":"stored","hashes":["01","ff00"],"parent":null,"tokens":32},
            {"seq":8,"kind":"cleared","hashes":[],"parent":null,"tokens":0}]}"#;
        let page = page_of(body).unwrap();
        assert_eq!((page.oldest_seq, page.next_seq), (7, 9));
        let mut first = [0; 32];
        first[0] = 1;
        let mut second = [0; 32];
        second[0] = 0xff;
        let blocks = vec![BlockHash(first), BlockHash(second)];
        assert_eq!(page.events[0].change, CacheChange::Stored(blocks));
        assert_eq!(page.events[1].change, CacheChange::Cleared);
        for bad in [
            &br#"{}"#[..],
            br#"{"engine_id":"e","next_seq":1,"oldest_seq":0,"events":[{"seq":0,"kind":"moved"}]}"#,
            b"\
                {\"engine_id\":\"e\",\"next_seq\":1,\"oldest_seq\":0,\"events\":[{\"seq\":0,\
                \"kind\":\"stored\",\"hashes\":[\"x\"]}]}",
        ] {
            assert!(page_of(bad).is_err());
        }
    }
}
