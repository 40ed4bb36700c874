//! Against a real server, named by the environment.

use pb_contract::wire::Prompt;
use pb_contract::{Clock, Stream, TokenId, WallClock};
use pb_load::Endpoint;
use pb_target::{CacheProof, Patience, SaltMaker, Target};

/// `PREFILLBENCH_TARGET_URL=http://127.0.0.1:8000 cargo test -p pb-target -- --ignored live`; the
/// server's vocabulary must have the tokens 10 to 199 and its context 400 tokens. The model's name
/// is read from `PREFILLBENCH_TARGET_MODEL`.
#[tokio::test]
#[ignore = "needs a running server"]
async fn live_server_is_made_cold_and_warm() {
    let Ok(url) = std::env::var("PREFILLBENCH_TARGET_URL") else {
        println!("skipped: PREFILLBENCH_TARGET_URL is not set");
        return;
    };
    let mut endpoint = Endpoint::parse(&url).unwrap();
    if let Ok(model) = std::env::var("PREFILLBENCH_TARGET_MODEL") {
        endpoint = endpoint.with_model(model);
    }
    let target = Target::connect(&endpoint, None, Patience::default())
        .await
        .unwrap();
    println!("{}", target.detection());
    // The clock is the nonce: a second run must not find what the first one left.
    let nonce = WallClock.now().0;
    let mut salts = SaltMaker::new(nonce, &(10..200).collect::<Vec<TokenId>>()).unwrap();
    let ids = |label: &str, length: u32| -> Vec<TokenId> {
        let mut stream = Stream::new(nonce, label);
        (0..length)
            .map(|_| 10 + stream.below(190) as TokenId)
            .collect()
    };
    let probe = Prompt::Ids(ids("probe", 300));
    let cold = target.prove_cold(&probe, &mut salts).await.unwrap();
    println!("{cold:?}");
    assert!(
        matches!(cold.proof, CacheProof::Cold { .. }),
        "{:?}",
        cold.proof
    );
    let stats = target.stats().await.unwrap().unwrap_or_default();
    let block = if target.adapter().token_granular {
        1
    } else {
        stats.block_size.unwrap_or(16)
    };
    // The tails begin with different tokens, so that 300 tokens are shared and no more.
    let prompt = |tail: u32| {
        let tail = [vec![tail], ids("tail", 19)].concat();
        Prompt::Ids([ids("prompt", 300), tail].concat())
    };
    let planned = 300 / block * block;
    let verify = (&prompt(11), planned);
    let warm = target
        .prepare_warm(&probe, &mut salts, &[prompt(12)], verify)
        .await
        .unwrap();
    println!("{warm:?}");
    assert!(
        matches!(warm.proof, CacheProof::Warm { .. }),
        "{:?}",
        warm.proof
    );
}
