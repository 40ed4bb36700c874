//! Body of the fuzz target for metrics pages.

use crate::prometheus::Exposition;
use crate::stats::ServerStats;

/// Reads arbitrary bytes as a metrics page and checks what must hold of any page: every sample
/// that was read, written again, reads back as itself, and mapping the page does not panic.
///
/// # Panics
/// One of the two does not hold.
pub fn fuzz_prometheus(data: &[u8]) {
    let page = Exposition::parse(&String::from_utf8_lossy(data));
    for sample in &page.samples {
        let again = Exposition::parse(&sample.to_string());
        assert!(again.rejected.is_empty(), "{sample}: {:?}", again.rejected);
        let same = again.samples.len() == 1
            && again.samples[0].name == sample.name
            && again.samples[0].labels == sample.labels
            && again.samples[0].value.total_cmp(&sample.value).is_eq();
        let nan = sample.value.is_nan();
        assert!(same || nan, "{sample} became {:?}", again.samples);
    }
    let stats = ServerStats::read(&page);
    for histogram in stats.latencies.all().into_iter().flatten() {
        for q in [0.0, 0.5, 0.99, 1.0] {
            let _ = histogram.quantile(q);
        }
    }
}
