//! Any bytes as a metrics page.

use pb_contract::Stream;
use pb_target::fuzz_prometheus;
use proptest::prelude::*;

use crate::recorded::response;

/// Pages with everything that the format allows, to be damaged.
fn seeds() -> Vec<Vec<u8>> {
    let odd = "# HELP a b\n# TYPE a counter\na{x=\"\\\\\\\"\\n\",y=\"}\"} 1e3 17 \
               # {t=\"1\"} 2\n\
               {\"u.v\",\"w x\"=\"1\"} NaN\n\
               h_bucket{le=\"+Inf\"} 3\nh_sum -Inf\nh_count 3\r\n# EOF";
    let recorded = ["vllm_metrics", "llamacpp_metrics"]
        .into_iter()
        .filter_map(response);
    let tail = |body: String| {
        let at = body.find("vllm:time_to_first_token").unwrap_or(0);
        body.as_bytes()[at..].iter().take(4000).copied().collect()
    };
    let mut seeds: Vec<Vec<u8>> = recorded.map(|answer| tail(answer.body)).collect();
    seeds.push(odd.into());
    seeds
}

/// The committed seeds, and whatever a fuzz run found.
#[test]
fn the_corpus_is_replayed() {
    let root = env!("CARGO_MANIFEST_DIR");
    let corpus = format!("{root}/../../tests/fuzz/corpus/prometheus");
    let entries = std::fs::read_dir(&corpus).unwrap();
    let pages: Vec<Vec<u8>> = entries
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    assert!(
        pages.len() >= 9,
        "found only {} seeds in {corpus}",
        pages.len()
    );
    pages.iter().for_each(|page| fuzz_prometheus(page));
}

#[test]
fn damaged_pages_are_read_or_rejected_and_never_panic() {
    let mut stream = Stream::new(11, "damage");
    let marks = b"{}\",=\\# \n+-.0eINa:_\x00\xc3";
    for seed in seeds() {
        for _ in 0..2000 {
            let mut page = seed.clone();
            for _ in 0..=stream.below(8) {
                let at = stream.below(page.len() as u64) as usize;
                let mark = marks[stream.below(marks.len() as u64) as usize];
                match stream.below(3) {
                    0 => page[at] = mark,
                    1 => page.insert(at, mark),
                    _ => drop(page.drain(at..page.len().min(at + 5))),
                }
                if page.is_empty() {
                    page.push(mark);
                }
            }
            fuzz_prometheus(&page);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_prometheus(&bytes);
    }

    #[test]
    fn labels_of_any_text_read_back(name in "[a-z_:][a-z0-9_:]{0,8}", value in any::<String>()) {
        let labels = vec![("k".to_owned(), value)];
        let sample = pb_target::Sample { name, labels, value: 1.5 };
        let page = pb_target::Exposition::parse(&sample.to_string());
        prop_assert_eq!(page.samples, [sample]);
    }
}
