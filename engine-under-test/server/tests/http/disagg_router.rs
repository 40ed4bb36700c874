//! What a router sees of a worker: its role, its cache, its transfers.

use pb_core::disagg::OnFailure;
use pb_kv::{CacheScope, HashKind, HashedTokens};
use pb_server::KvRole;
use serde_json::{Value, json};

use crate::client;
use crate::disagg::{alone, kv, legs, prompt, with_params, worker};

#[tokio::test]
async fn roles_are_kept() {
    let prefill = worker(KvRole::Prefill, kv(OnFailure::Fail), 7).await;
    let decode = worker(KvRole::Decode, kv(OnFailure::Fail), 8).await;
    let alone = alone().await;
    let hand_off = json!({ "do_remote_decode": true });
    let take = json!({
        "do_remote_prefill": true, "remote_engine_id": "x", "remote_host": "127.0.0.1",
        "remote_port": 1, "transfer_id": 9, "remote_block_size": 16, "num_tokens": 20,
        "first_token": 50, "finished": false,
    });
    for (server, params, word) in [
        (&prefill, &take, "role is prefill"),
        (&decode, &hand_off, "role is decode"),
        (&alone, &hand_off, "role is none"),
        (&alone, &take, "role is none"),
    ] {
        let body = json!({ "prompt": prompt(20), "kv_transfer_params": params });
        let refused = client::post(server.addr, "/v1/completions", &body).await;
        assert_eq!(refused.status, 400);
        assert_eq!(refused.error()["param"], "kv_transfer_params");
        assert!(refused.text().contains(word), "{}", refused.text());
    }
    let two = json!({ "prompt": prompt(20), "n": 2, "kv_transfer_params": hand_off });
    let refused = client::post(prefill.addr, "/v1/completions", &two).await;
    assert!(
        refused.status == 400 && refused.text().contains("n = 1"),
        "{}",
        refused.text()
    );
    let mut other = take.clone();
    other["num_tokens"] = json!(19);
    let body = json!({ "prompt": prompt(20), "kv_transfer_params": other });
    let refused = client::post(decode.addr, "/v1/completions", &body).await;
    assert!(refused.status == 400 && refused.text().contains("KV is of 19 tokens"));
    let mut far = take.clone();
    far["remote_host"] = json!("192.0.2.1");
    let body = json!({ "prompt": prompt(20), "kv_transfer_params": far });
    let refused = client::post(decode.addr, "/v1/completions", &body).await;
    assert!(refused.status == 503 && refused.text().contains("not a loopback address"));
    for server in [prefill, decode, alone] {
        server.shut_down().await;
    }
}

#[tokio::test]
async fn a_router_learns_what_the_cache_holds() {
    let both = worker(KvRole::Both, kv(OnFailure::Fail), 11).await;
    let ask = async |path: &str| client::get(both.addr, path).await.json();
    let nothing = ask("/kv_events?since=0").await;
    assert_eq!(
        (&nothing["events"], &nothing["next_seq"]),
        (&json!([]), &json!(0))
    );
    let body =
        json!({ "prompt": prompt(40), "max_tokens": 2, "temperature": 0, "ignore_eos": true });
    client::post(both.addr, "/v1/completions", &body)
        .await
        .json();
    let worker = ask("/worker").await;
    assert_eq!(worker["engine_id"], "worker-11");
    assert_eq!(
        (&worker["block_size"], &worker["blocks_total"]),
        (&json!(16), &json!(64))
    );
    assert_eq!(
        (&worker["kv_transport"], &worker["running"]),
        (&json!("tcp"), &json!(0))
    );
    assert_eq!(worker["hash"]["algorithm"], "blake3");
    // The names of the prompt's two full blocks, from the seed that the worker tells.
    let seed = worker["hash"]["seed"].as_str().unwrap();
    let byte = |i: usize| u8::from_str_radix(&seed[2 * i..2 * i + 2], 16).unwrap();
    let scope = CacheScope {
        identity: std::array::from_fn(byte),
        ..CacheScope::default()
    };
    let mut names = HashedTokens::with_hash(16, &scope, HashKind::Blake3);
    names.extend(&prompt(40));
    let hex = |hash: &pb_kv::BlockHash| -> String {
        hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let expected: Vec<String> = names.hashes().iter().map(hex).collect();
    assert_eq!(expected.len(), 2);
    let told = ask("/kv_events?since=0").await;
    assert_eq!(
        (&told["block_size"], &told["oldest_seq"]),
        (&json!(16), &json!(0))
    );
    let event = json!({ "seq": 0, "kind": "stored", "hashes": expected, "parent": null,
        "tokens": 32 });
    assert_eq!(told["events"], json!([event]));
    assert_eq!(told["next_seq"], 1);
    client::post(both.addr, "/reset_prefix_cache", &json!({})).await;
    let told = ask("/kv_events?since=1").await;
    assert_eq!(told["events"][0]["kind"], "cleared");
    // Beyond the end, which is told.
    let told = ask("/kv_events?since=9000").await;
    assert_eq!(
        (&told["events"], &told["next_seq"]),
        (&json!([]), &json!(2))
    );
    let refused = client::get(both.addr, "/kv_events?since=x").await;
    assert_eq!(refused.status, 400);
    let refused = client::post(both.addr, "/kv_release", &json!({})).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("transfer_id"));
    let released = client::post(both.addr, "/kv_release?transfer_id=5", &json!({})).await;
    assert_eq!(released.json()["released"], false);
    both.shut_down().await;
}

#[tokio::test]
async fn rows_of_transfers_can_be_read_as_they_end() {
    let both = worker(KvRole::Both, kv(OnFailure::Fail), 12).await;
    let body =
        json!({ "prompt": prompt(40), "max_tokens": 3, "temperature": 0, "ignore_eos": true });
    legs(&both, &both, "/v1/completions", &body).await;
    let raw = client::request("GET", "/transfers?from=0", "", b"");
    let mut open = client::Open::raw(both.addr, &raw, None).await;
    let seen = open.read_until(|text| text.contains("\"ended\"")).await;
    let line = seen
        .lines()
        .find(|line| line.starts_with("{\"seq\":0"))
        .unwrap();
    let row: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&row["tokens"], &row["blocks"]), (&json!(40), &json!(3)));
    assert_eq!(
        (&row["ended"], &row["mode"]),
        (&json!("acknowledged"), &json!("pull"))
    );
    // The same server has the two full blocks, so the last one is all that moves.
    assert!(row["cells"].as_u64().unwrap() > 0 && row["bytes"].as_u64().unwrap() > 0);
    drop(open);
    both.shut_down().await;
}

#[tokio::test]
async fn kv_that_was_promised_can_be_fetched_from_a_server_that_stops() {
    let mut prefill = worker(KvRole::Prefill, kv(OnFailure::Fail), 41).await;
    let decode = worker(KvRole::Decode, kv(OnFailure::Fail), 42).await;
    let body =
        json!({ "prompt": prompt(40), "max_tokens": 3, "temperature": 0, "ignore_eos": true });
    let hand_off = with_params(&body, json!({ "do_remote_decode": true }));
    let first = client::post(prefill.addr, "/v1/completions", &hand_off).await;
    let params = first.json()["kv_transfer_params"].clone();
    assert_eq!(params["finished"], false, "{}", first.text());
    prefill.signal();
    // It takes no more requests.
    while tokio::net::TcpStream::connect(prefill.addr).await.is_ok() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let rest = client::post(decode.addr, "/v1/completions", &with_params(&body, params)).await;
    assert_eq!(rest.status, 200, "{}", rest.text());
    assert_eq!(rest.json()["usage"]["completion_tokens"], 3);
    prefill.ended().await;
    decode.shut_down().await;
}
