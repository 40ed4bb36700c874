//! The output head: logits of the rows that are wanted, and tokens chosen from them on the device
//! where nobody wants to see them.

use pb_contract::{Clock, Nanos, TokenId};
use pb_kernels_cuda::ops::{self, SAMPLE_VOCAB_MAX, SampleRow};
use pb_kernels_cuda::{Buffer, Device, DeviceExt, Elem, GemmOut, KernelError, StoreElem};
use pb_model::forward::{LogitRow, LogitSink, RowUse, SeqInput, TokenRule, WantedRow, wanted_rows};

use crate::forward::Model;

/// Rows whose logits are computed at once.
pub(crate) const LOGIT_TILE: usize = 64;

/// Longest list of forbidden tokens that the device searches for every token of the vocabulary.
const FORBIDDEN_MAX: usize = 64;

/// The rule that costs least.
const GREEDY: SampleRow<'static> = SampleRow {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    forbidden: &[],
    key: [0; 32],
    draw: 0,
};

/// A row and, where its token is chosen here, by which rule.
pub(crate) type Wanted = (WantedRow, Option<TokenRule>);

/// The rows of a batch that the head is computed for, in batch order.
pub(crate) fn wanted(inputs: &[SeqInput<'_>], vocab: usize, sink: &dyn LogitSink) -> Vec<Wanted> {
    let rows = wanted_rows(inputs).into_iter();
    rows.filter_map(|row| match sink.row_use(row.seq, row.position) {
        RowUse::Nothing => None,
        RowUse::Token(rule) if takes(&rule, vocab) => Some((row, Some(rule))),
        RowUse::Token(_) | RowUse::Logits => Some((row, None)),
    })
    .collect()
}

/// Whether the device chooses by such a rule; the host's sampler takes the others.
fn takes(rule: &TokenRule, vocab: usize) -> bool {
    let settings = rule.temperature >= 0.0 && rule.temperature.is_finite() && rule.top_p >= 0.0;
    let forbidden = rule.forbidden.len() <= FORBIDDEN_MAX && rule.forbidden.len() < vocab;
    settings && forbidden && vocab <= SAMPLE_VOCAB_MAX
}

fn sample_row(rule: &TokenRule) -> SampleRow<'_> {
    SampleRow {
        temperature: rule.temperature,
        top_k: rule.top_k,
        top_p: rule.top_p,
        forbidden: &rule.forbidden,
        key: rule.key,
        draw: rule.draw,
    }
}

impl<D: Device, T: Elem, S: StoreElem<T>> Model<'_, D, T, S>
where
    f32: GemmOut<T>,
{
    /// Logits of one tile of wanted rows of `normed`. Those of rows with a rule stay here.
    pub(crate) fn head(
        &self,
        tile: &[Wanted],
        normed: &Buffer<T>,
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
        sink_ns: &mut Nanos,
    ) -> Result<(), KernelError> {
        let (device, c) = (self.device, self.config);
        let mark = device.mark();
        let (chosen, shown): (Vec<&Wanted>, Vec<&Wanted>) =
            tile.iter().partition(|(_, rule)| rule.is_some());
        let rows = chosen.iter().chain(&shown);
        let rows: Vec<u32> = rows.map(|(w, _)| w.row as u32).collect();
        let picked = device.empty::<T>("picked rows", rows.len() * c.hidden)?;
        ops::gather_rows(device, normed, &rows, c.hidden, &picked)?;
        let logits = device.empty::<f32>("logits", rows.len() * c.vocab)?;
        let picked = (&picked, rows.len());
        ops::gemm(device, self.by(), picked, &self.weights.head, None, &logits)?;
        let ours = logits.slice(0, chosen.len() * c.vocab);
        let theirs = logits.slice(ours.len(), shown.len() * c.vocab);
        let rules = chosen.iter().filter_map(|(_, rule)| rule.as_ref());
        let tokens = self.choose(&rules.map(sample_row).collect::<Vec<_>>(), &ours)?;
        // A copy of nothing would still wait for the device.
        let host = match shown.is_empty() {
            true => Vec::new(),
            false => device.download(&theirs)?,
        };
        device.release(mark)?;
        let before = clock.now();
        for ((w, _), token) in chosen.iter().zip(tokens) {
            sink.chosen(w.seq, token);
        }
        for ((w, _), row) in shown.iter().zip(host.chunks_exact(c.vocab)) {
            sink.row(w.seq, w.position, LogitRow::F32(row));
        }
        *sink_ns += clock.now() - before;
        Ok(())
    }

    /// Hands over what is wanted of `logits`, which has a row for every row of the batch.
    pub(crate) fn hand_over(
        &self,
        wanted: &[Wanted],
        logits: &Buffer<f32>,
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
        sink_ns: &mut Nanos,
    ) -> Result<(), KernelError> {
        let (device, vocab) = (self.device, self.config.vocab);
        let chosen = wanted.iter().filter(|(_, rule)| rule.is_some());
        let rows = chosen.clone().map(|(w, _)| w.row + 1).max().unwrap_or(0);
        // Rows between those that are asked for are cheap to choose for, and nobody looks.
        let mut rules = vec![GREEDY; rows];
        for (w, rule) in chosen.clone() {
            rules[w.row] = rule.as_ref().map_or(GREEDY, sample_row);
        }
        let tokens = self.choose(&rules, &logits.slice(0, rows * vocab))?;
        let shown = wanted.iter().filter(|(_, rule)| rule.is_none());
        let row = |(w, _): &Wanted| device.download(&logits.slice(w.row * vocab, vocab));
        let shown_rows = shown.clone().map(row).collect::<Result<Vec<_>, _>>()?;
        let before = clock.now();
        for (w, _) in chosen {
            sink.chosen(w.seq, tokens[w.row]);
        }
        for ((w, _), row) in shown.zip(&shown_rows) {
            sink.row(w.seq, w.position, LogitRow::F32(row));
        }
        *sink_ns += clock.now() - before;
        Ok(())
    }

    /// A token for every row of `logits`.
    fn choose(
        &self,
        rules: &[SampleRow<'_>],
        logits: &Buffer<f32>,
    ) -> Result<Vec<TokenId>, KernelError> {
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        // From logits that are no numbers no token may come: none is written, and it is seen.
        let none = vec![TokenId::MAX; rules.len()];
        let out = self.device.upload("tokens", &none)?;
        ops::sample(self.device, logits, rules, &out)?;
        let tokens = self.device.download(&out)?;
        let problem = "logits are no numbers";
        match ops::check_tokens(&tokens, self.config.vocab) {
            Ok(()) => Ok(tokens),
            Err(e) => Err(KernelError::Device {
                call: "sample_rows".to_owned(),
                problem: format!("{problem}: {e}"),
            }),
        }
    }
}
