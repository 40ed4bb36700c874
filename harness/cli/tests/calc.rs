//! `calc` against the published worked values of chunking, prefix reuse and KV transfer.

mod common;

use common::{json, run, stderr};
use serde_json::json;

#[test]
fn chunks_under_a_budget() {
    let table: [(&[&str], serde_json::Value); 3] = [
        (
            &["--budget", "512", "--decodes", "4", "--prompt", "2048"],
            json!([508, 508, 508, 508, 16]),
        ),
        (
            &["--budget", "1024", "--decodes", "300", "--prompt", "3500"],
            json!([724, 724, 724, 724, 604]),
        ),
        (
            &["--budget", "2048", "--chunk", "512", "--prompt", "8192"],
            json!(vec![512; 16]),
        ),
    ];
    for (args, want) in table {
        let got = json(&[&["calc", "chunks", "--json"], args].concat());
        assert_eq!(got["chunks"], want, "{args:?}");
    }
    let got = json(&[
        "calc",
        "chunks",
        "--budget",
        "512",
        "--decodes",
        "4",
        "--prompt",
        "2048",
        "--json",
    ]);
    assert_eq!(got["cached_after"], json!([508, 1016, 1524, 2032, 2048]));
}

#[test]
fn a_budget_eaten_by_decodes_is_an_error() {
    for (budget, decodes) in [("512", "512"), ("1024", "1024")] {
        let args = [
            "calc",
            "chunks",
            "--budget",
            budget,
            "--decodes",
            decodes,
            "--prompt",
            "100",
        ];
        let output = run(&args);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(budget), "{}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn work_that_a_prefix_avoids() {
    let first = json(&[
        "calc", "prefix", "--prompt", "3000", "--shared", "2500", "--json",
    ]);
    assert_eq!(first["hit_blocks"], 156);
    assert_eq!(first["hit_tokens"], 2496);
    assert_eq!(first["fresh_tokens"], 504);
    assert_eq!(first["suffix_prefix_pairs"], 1_257_984);
    assert_eq!(first["suffix_suffix_pairs"], 127_260);
    assert_eq!(first["total_pairs"], 1_385_244);
    assert_eq!(first["skipped_pairs"], 3_116_256);
    assert_eq!(first["full_pairs"], 4_501_500);
    let args = [
        "calc",
        "prefix",
        "--prompt",
        "4000",
        "--shared",
        "3100",
        "--block-size",
        "32",
        "--json",
    ];
    let second = json(&args);
    assert_eq!(
        (&second["hit_blocks"], &second["hit_tokens"]),
        (&json!(96), &json!(3072))
    );
    assert_eq!(second["fresh_tokens"], 928);
    assert_eq!(second["total_pairs"], 3_281_872);
    assert_eq!(second["skipped_pairs"], 4_720_128);
    assert_eq!(second["full_pairs"], 8_002_000);
}

#[test]
fn floating_point_work_and_bounds() {
    let got = json(&[
        "calc",
        "flops",
        "--tokens",
        "504",
        "--parameters",
        "8e9",
        "--json",
    ]);
    assert_eq!(got["linear_flop"], 8.064e12);
    // 70e9 parameters in bf16 at 2 TB/s: 70 ms.
    let got = json(&[
        "calc",
        "flops",
        "--tokens",
        "512",
        "--parameters",
        "70e9",
        "--bandwidth",
        "2e12",
        "--json",
    ]);
    assert_eq!(got["weight_floor_ms"], 70.0);
    let intensity = got["intensity"].as_f64().expect("a number");
    assert!((intensity - 455.1).abs() < 0.1, "{intensity}");
}

#[test]
fn size_and_transfer_of_the_cache() {
    let shape = ["--kv-heads", "8", "--d-head", "128", "--json"];
    let kv = |layers: &str, tokens: &str, link: &str| {
        let args = [
            "calc", "transfer", "--layers", layers, "--tokens", tokens, "--link", link,
        ];
        json(&[&args[..], &shape[..]].concat())
    };
    let close = |value: &serde_json::Value, want: f64| {
        let got = value.as_f64().expect("a number");
        assert!((got / want - 1.0).abs() < 5e-3, "{got} against {want}");
    };
    let small = kv("32", "2048", "12.5e9");
    assert_eq!(small["bytes_per_token"], 131_072);
    assert_eq!(small["payload_bytes"], 268_435_456);
    close(&small["ideal_ms"], 21.475);
    // A bare number is bytes, which whoever means gigabits must see.
    assert_eq!(small["link_bytes_per_s"], 12.5e9);
    let middle = kv("40", "4096", "25e9");
    assert_eq!(middle["payload_bytes"], 671_088_640);
    close(&middle["ideal_ms"], 26.8435);
    close(&kv("40", "2048", "900e9")["ideal_ms"], 0.373);
    let large = kv("80", "4096", "900e9");
    assert_eq!(large["payload_bytes"], 1_342_177_280_u64);
    close(&large["ideal_ms"], 1.49);
    close(&large["layer_transfer_ms"], 0.0186);
    close(&kv("80", "4096", "12.5e9")["ideal_ms"], 107.4);
}

#[test]
fn streaming_layer_by_layer_and_what_it_leaves() {
    // 70 B, 4096 tokens: 16.8 MB a layer, 1.34 ms at 12.5 GB/s; 7.2 TFLOP a layer at half of an
    // H100's 989 TFLOP/s take 14.6 ms.
    let shape = [
        "calc",
        "transfer",
        "--layers",
        "80",
        "--tokens",
        "4096",
        "--kv-heads",
        "8",
        "--d-head",
        "128",
        "--json",
    ];
    let with = |more: &[&str]| json(&[&shape[..], more].concat());
    let close = |value: &serde_json::Value, want: f64| {
        let got = value.as_f64().expect("a number");
        assert!((got / want - 1.0).abs() < 5e-3, "{got} against {want}");
    };
    let hidden = with(&["--link", "12.5e9", "--layer-ms", "14.6"]);
    close(&hidden["layer_bytes"], 16_777_216.0);
    close(&hidden["exposed_ms"], 1.342);
    close(&hidden["exposed_share"], 1.0 / 80.0);
    assert_eq!(hidden["hidden_by_compute"], "yes");
    let exposed = with(&["--link", "1.25e9", "--layer-ms", "1.0"]);
    // A layer takes 13.42 ms: the last one waits for 79 lags of 12.42 ms.
    close(&exposed["exposed_ms"], 13.42 + 79.0 * 12.42);
    assert_eq!(exposed["hidden_by_compute"], "no");
    // A layer is 4096 bytes a token; at 100 Gb/s 8 us are 100,000 bytes.
    let pays = with(&["--link", "100Gb/s", "--post-us", "8"]);
    close(&pays["streaming_pays_above"], 100_000.0 / 4096.0);
    assert_eq!(pays["ideal_ms"], with(&["--link", "12.5GB/s"])["ideal_ms"]);
    let wrong = run(&[&shape[..], &["--link", "100Gbps"]].concat());
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("100Gb/s"), "{}", stderr(&wrong));
}

#[test]
fn measured_transfers_beside_the_ideal() {
    let dir = tempfile::tempdir().expect("a folder");
    let table = "id,request,mode,granularity,tokens,blocks,cells,resent_cells,bytes,frames,\
                 descriptors,queue_wait_ns,copy_ns,wire_ns,total_ns,exposed_ns,ended,cause\n\
                 9,1,pull,layer,4,1,4,0,524288,4,4,1000,1,1,2000000,500000,acknowledged,\n";
    std::fs::write(dir.path().join("transfers.csv"), table).expect("written");
    let run_dir = dir.path().display().to_string();
    let args = [
        "calc",
        "transfer",
        "--layers",
        "32",
        "--tokens",
        "4",
        "--kv-heads",
        "8",
        "--d-head",
        "128",
        "--link",
        "524288000",
        "--json",
        "--run",
        &run_dir,
    ];
    let got = json(&args);
    // 4 * 131,072 bytes at 524,288,000 bytes/s are 1 ms; 2 ms were measured.
    assert_eq!(got["payload_bytes"], 524_288);
    assert_eq!(got["measured_as_payload"], 1);
    assert_eq!(got["measured_ideal_ms_p50"], 1.0);
    assert_eq!(got["overhead_ms_p50"], 1.0);
    assert_eq!(got["measured_exposed_ms_p50"], 0.5);
    let missing = [&args[..14], &["/nonexistent"]].concat();
    let output = run(&missing);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("transfers.csv"),
        "{}",
        stderr(&output)
    );
}
