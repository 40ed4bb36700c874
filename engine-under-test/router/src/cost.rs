//! Dynamo's cost of giving a request to a worker, in blocks.
//!
//! ```text
//! cost = overlap_weight * max(active prefill + incoming prompt - credit, 0)
//!        + decode blocks + active_request_weight * active requests
//! ```
//!
//! The credit is the overlap of the prompt with the worker's cache. The older form,
//! `overlap_score_weight * prefill_blocks + decode_blocks`, is the same with a full credit.
//! (ai-dynamo/dynamo, docs: routing concepts.)

use pb_contract::Stream;

/// Parameters of the cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostParams {
    /// Weight of a block to prefill against a block to decode: Dynamo's `prefill_load_scale`, once
    /// `overlap_score_weight`.
    pub overlap_weight: f64,
    /// Share of the overlap that counts, from 0 to 1.
    pub overlap_credit: f64,
    /// How fast the credit falls with a worker's backlog beyond the least one: at a backlog of as
    /// many blocks as the prompt has, it is divided by one plus this.
    pub credit_decay: f64,
    /// Blocks that a request counts for beside its own.
    pub active_request_weight: f64,
    /// Multiply the prefill blocks by one plus the decode blocks instead of adding these.
    pub product: bool,
    /// 0 takes the lowest cost, ties by number; above, softmax over costs scaled to a range of 1.
    pub temperature: f64,
}

impl Default for CostParams {
    fn default() -> Self {
        CostParams {
            overlap_weight: 1.0,
            overlap_credit: 1.0,
            credit_decay: 0.0,
            active_request_weight: 0.0,
            product: false,
            temperature: 0.0,
        }
    }
}

/// What the cost of one worker depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostInput {
    /// Blocks that its requests still have to prefill.
    pub active_prefill_blocks: f64,
    /// Blocks of the prompt.
    pub prompt_blocks: f64,
    /// Leading blocks of the prompt in its cache.
    pub overlap_blocks: f64,
    /// Blocks in use once it has the request.
    pub decode_blocks: f64,
    /// Requests that it has.
    pub active_requests: f64,
}

impl CostParams {
    /// The cost; `least_prefill_blocks` is the smallest backlog among the workers to choose from.
    pub fn cost(&self, input: &CostInput, least_prefill_blocks: f64) -> f64 {
        let excess = (input.active_prefill_blocks - least_prefill_blocks).max(0.0);
        let decay = 1.0 + self.credit_decay * excess / input.prompt_blocks.max(1.0);
        let credit = self.overlap_credit * input.overlap_blocks / decay;
        let raw = input.active_prefill_blocks + input.prompt_blocks;
        let prefill = self.overlap_weight * (raw - credit).max(0.0);
        let requests = self.active_request_weight * input.active_requests;
        if self.product {
            return prefill * (input.decode_blocks + 1.0) + requests;
        }
        prefill + input.decode_blocks + requests
    }

    /// Which of `costs` is taken, or none of none. Draws a random number only at a temperature
    /// above zero.
    pub fn choose(&self, costs: &[f64], rng: &mut Stream) -> Option<usize> {
        let lowest = (0..costs.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b]))?;
        if self.temperature == 0.0 {
            return Some(lowest);
        }
        let most = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Where all are equal the range is empty, and so all weights are 1.
        let range = if most > costs[lowest] {
            most - costs[lowest]
        } else {
            1.0
        };
        let scaled = costs.iter().map(|cost| (cost - costs[lowest]) / range);
        let weights: Vec<f64> = scaled
            .map(|cost| libm::exp(-cost / self.temperature))
            .collect();
        let mut at = rng.unit_f64() * weights.iter().sum::<f64>();
        for (index, weight) in weights.iter().enumerate() {
            at -= weight;
            if at < 0.0 {
                return Some(index);
            }
        }
        // Rounding may leave a remainder after the last.
        Some(costs.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[active prefill, prompt, overlap, decode, requests]`.
    fn input(numbers: [f64; 5]) -> CostInput {
        let [active, prompt, overlap, decode, requests] = numbers;
        CostInput {
            active_prefill_blocks: active,
            prompt_blocks: prompt,
            overlap_blocks: overlap,
            decode_blocks: decode,
            active_requests: requests,
        }
    }

    /// Costs of workers and the one that is taken.
    fn decide(params: CostParams, workers: &[[f64; 5]]) -> (Vec<f64>, usize) {
        let inputs: Vec<CostInput> = workers.iter().map(|&numbers| input(numbers)).collect();
        let backlogs = inputs.iter().map(|input| input.active_prefill_blocks);
        let least = backlogs.fold(f64::INFINITY, f64::min);
        let costs: Vec<f64> = inputs
            .iter()
            .map(|input| params.cost(input, least))
            .collect();
        let mut rng = Stream::new(1, "unused at temperature 0");
        let chosen = params.choose(&costs, &mut rng).unwrap();
        (costs, chosen)
    }

    /// The example of Dynamo's documentation (KV cache routing, worker selection): a prompt of 10
    /// blocks, of which the three workers have 2, 5 and 8.
    const DOCUMENTED: [[f64; 5]; 3] = [
        [0.0, 10.0, 2.0, 10.0, 0.0],
        [0.0, 10.0, 5.0, 5.0, 0.0],
        [0.0, 10.0, 8.0, 9.0, 0.0],
    ];

    #[test]
    fn dynamos_documented_example() {
        // 1.0 * 8 + 10 = 18, 1.0 * 5 + 5 = 10, 1.0 * 2 + 9 = 11: the second.
        let (costs, chosen) = decide(CostParams::default(), &DOCUMENTED);
        assert_eq!((costs, chosen), (vec![18.0, 10.0, 11.0], 1));
    }

    #[test]
    fn the_weight_moves_the_choice() {
        let weight = |overlap_weight| CostParams {
            overlap_weight,
            ..CostParams::default()
        };
        // 2 * 8 + 10 = 26, 2 * 5 + 5 = 15, 2 * 2 + 9 = 13: the third.
        let (costs, chosen) = decide(weight(2.0), &DOCUMENTED);
        assert_eq!((costs, chosen), (vec![26.0, 15.0, 13.0], 2));
        // 0 looks at the decode blocks alone: 10, 5, 9.
        let (costs, chosen) = decide(weight(0.0), &DOCUMENTED);
        assert_eq!((costs, chosen), (vec![10.0, 5.0, 9.0], 1));
        // Where it turns: 5 w + 5 = 2 w + 9 at w = 4/3; the tie goes to the lower number.
        let (costs, chosen) = decide(
            weight(1.0),
            &[[0.0, 10.0, 5.0, 5.0, 0.0], [0.0, 10.0, 8.0, 8.0, 0.0]],
        );
        assert_eq!((costs, chosen), (vec![10.0, 10.0], 0));
    }

    #[test]
    fn a_backlog_counts_and_credit_never_pays_out() {
        // Backlog 6: 6 + 10 - 8 + 9 = 17. Backlog 0 without overlap: 10 + 5 = 15.
        let (costs, chosen) = decide(
            CostParams::default(),
            &[[6.0, 10.0, 8.0, 9.0, 0.0], [0.0, 10.0, 0.0, 5.0, 0.0]],
        );
        assert_eq!((costs, chosen), (vec![17.0, 15.0], 1));
        // max(0 + 4 - 4.0, 0) = 0, not less, also when a shorter prompt meets a longer credit.
        let (costs, _) = decide(CostParams::default(), &[[0.0, 4.0, 9.0, 3.0, 0.0]]);
        assert_eq!(costs, [3.0]);
    }

    #[test]
    fn half_credit_decay_requests_and_product() {
        let params = |change: fn(&mut CostParams)| {
            let mut params = CostParams::default();
            change(&mut params);
            params
        };
        // Half of the credit: 10 - 0.5 * 8 + 9 = 15.
        let half = params(|p| p.overlap_credit = 0.5);
        assert_eq!(decide(half, &[[0.0, 10.0, 8.0, 9.0, 0.0]]).0, [15.0]);
        // Decay 1, excess 10 blocks, prompt 10 blocks: credit 8 / (1 + 1 * 10/10) = 4, so
        // 10 + 10 - 4 + 9 = 25; the worker with the least backlog keeps its credit:
        // 0 + 10 - 2 + 10 = 18.
        let decay = params(|p| p.credit_decay = 1.0);
        let workers = [[10.0, 10.0, 8.0, 9.0, 0.0], [0.0, 10.0, 2.0, 10.0, 0.0]];
        assert_eq!(decide(decay, &workers), (vec![25.0, 18.0], 1));
        // 5 + 5 + 0.5 * 4 = 12 against 5 + 5 + 0 = 10.
        let requests = params(|p| p.active_request_weight = 0.5);
        let workers = [[0.0, 10.0, 5.0, 5.0, 4.0], [0.0, 10.0, 5.0, 5.0, 0.0]];
        assert_eq!(decide(requests, &workers), (vec![12.0, 10.0], 1));
        // 8 * 11 = 88, 5 * 6 = 30, 2 * 10 = 20: the third, where the sum took the second.
        let product = params(|p| p.product = true);
        let (costs, chosen) = decide(product, &DOCUMENTED);
        assert_eq!((costs, chosen), (vec![88.0, 30.0, 20.0], 2));
    }

    #[test]
    fn softmax_over_scaled_costs() {
        let params = CostParams {
            temperature: 1.0,
            ..CostParams::default()
        };
        let mut rng = Stream::new(5, "softmax");
        let draws = 100_000;
        let mut counts = [0u32; 3];
        for _ in 0..draws {
            counts[params.choose(&[18.0, 10.0, 11.0], &mut rng).unwrap()] += 1;
        }
        // Scaled to 1, 0, 1/8: weights 0.367879, 1, 0.882497; sum 2.250376. Six standard
        // deviations of a share are at most 6 * sqrt(0.25 / 100,000) = 0.0095.
        for (count, share) in counts.into_iter().zip([0.163475, 0.444370, 0.392155]) {
            let got = f64::from(count) / f64::from(draws);
            assert!((got - share).abs() < 0.0095, "{got} against {share}");
        }
        assert_eq!(params.choose(&[], &mut rng), None);
        assert!(params.choose(&[3.0, 3.0], &mut rng).is_some());
    }
}
