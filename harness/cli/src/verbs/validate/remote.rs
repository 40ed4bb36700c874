//! `prefillbench validate --base-url`: do states that should not matter change what a server says?

use anyhow::{Context, Result, ensure};
use pb_contract::{Nanos, Stream, TokenId};
use pb_judge::remote::{
    Compared, NotCompared, Planted, Precision, PromptDeltas, RemoteLimits, RemoteStats,
    RemoteValidation, TopRow, compare, compare_generated, judge,
};
use pb_workloads::PROSE;

use super::answer::{Answer, Found};
use super::ask::{Asker, Cache, Source, Sources};
use super::background::Background;
use super::document::Document;
use super::evidence::cache_states;
use super::plant::Alteration;
use super::prompts;
use crate::args::{PrecisionArg, ValidateArgs};
use crate::progress::Progress;

/// Rows kept in memory, prompts times tokens.
const MAX_ROWS: usize = 1 << 16;
/// Shortest prompt: three blocks, of which one is altered and two may be found in a cache.
const MIN_PROMPT_LEN: usize = 48;
/// Tokens of a prompt: above two blocks of 128, the largest that a server is known to have.
const PROMPT_LEN: usize = 288;
/// How long a reset of the cache may be refused.
const RESET_LIMIT: Nanos = Nanos::from_secs(30);
/// What rows of prompts and of continuations are called.
const PROMPT_ROWS: &str = "prompt tokens";
const GENERATED_ROWS: &str = "greedy tokens";

/// Everything that was decided before the first request.
pub(super) struct Design {
    pub(super) limits: RemoteLimits,
    pub(super) precision: Precision,
    pub(super) prompt_len: usize,
    pub(super) listed: usize,
    pub(super) output_len: usize,
    pub(super) background: usize,
    pub(super) nonce: u64,
}

impl Design {
    fn new(args: &ValidateArgs) -> Result<Design> {
        let (count, len) = (args.prompts, args.prompt_len.unwrap_or(PROMPT_LEN));
        ensure!(
            len >= MIN_PROMPT_LEN,
            "--prompt-len {len}: must be at least {MIN_PROMPT_LEN}, three blocks of a cache"
        );
        ensure!(
            count >= 1 && count.saturating_mul(len) <= MAX_ROWS,
            "--prompts {count} --prompt-len {len}: must be 1 to {MAX_ROWS} tokens together"
        );
        let remote = &args.remote;
        let precision = match remote.precision.unwrap_or(PrecisionArg::Bf16) {
            PrecisionArg::F32 => Precision::F32,
            PrecisionArg::Bf16 => Precision::Bf16,
            PrecisionArg::Int8 => Precision::Int8,
        };
        let mut limits = RemoteLimits::of(precision);
        limits.tie_margin = remote.tie_margin.unwrap_or(limits.tie_margin);
        limits.delta_nll_margin = remote.nll_margin.unwrap_or(limits.delta_nll_margin);
        Ok(Design {
            limits,
            precision,
            prompt_len: len,
            listed: remote.top_logprobs.unwrap_or(20),
            output_len: remote.output_len.unwrap_or(16),
            background: remote.background.unwrap_or(4),
            nonce: remote
                .nonce
                .unwrap_or_else(|| jiff::Timestamp::now().as_nanosecond() as u64),
        })
    }
}

/// Asks and judges.
///
/// # Errors
/// Bad arguments, a server that cannot be reached or does not give what is needed.
pub(super) async fn run(
    args: &ValidateArgs,
    base_url: &str,
    progress: &Progress,
) -> Result<Document> {
    let design = Design::new(args)?;
    let model = args.model.as_deref().context("--model is missing")?;
    let connect = &args.remote.connect;
    let asker = |flag, url| Asker::new((flag, url), model, design.listed, connect);
    let mut a = asker("--base-url", base_url)?;
    let b = args.remote.against.as_deref();
    let mut b = b.map(|url| asker("--against", url)).transpose()?;
    a.greet().await?;
    if let Some(b) = &mut b {
        b.greet().await?;
    }
    let text = match &args.remote.text {
        None => PROSE.to_owned(),
        Some(path) => {
            std::fs::read_to_string(path).with_context(|| format!("--text {}", path.display()))?
        }
    };
    progress.phase("cutting prompts with the server's tokenizer");
    let size = (args.prompts, design.prompt_len);
    let prompts = prompts::cut(&a, &text, size, args.seed).await?;
    let sources = a.sources(&prompts[0]).await?;
    let source = sources.found;
    let mut check = Check {
        salts: Salts(Stream::new(design.nonce, "validation salts")),
        design,
        prompts,
        source,
        progress,
        found: RemoteValidation::default(),
    };
    if source.is_none() {
        check.without_prompt_rows(&sources, b.is_some());
    }
    let base = check.base(&a).await?;
    check.cold_warm(&a, &base).await?;
    if a.cache_off_field().is_some() {
        check.warm_later(&a, &base).await?;
    }
    check.again(&a, &base).await?;
    if check.design.background > 0 {
        check.mixed(&a, &base).await?;
    }
    if let Some(b) = &b {
        check.against(b, &base).await?;
    }
    check.plant(&a, &base).await?;
    Ok(Document::new(
        args,
        &a,
        b.as_ref(),
        source,
        check.design,
        check.found,
    ))
}

/// Names of cache scopes that nobody used before.
struct Salts(Stream);

impl Salts {
    fn next(&mut self) -> String {
        format!("{:016x}{:016x}", self.0.next_u64(), self.0.next_u64())
    }
}

/// What server A says of every prompt, alone and with a cold cache.
struct Base {
    prompt: Vec<Vec<TopRow>>,
    generated: Vec<Answer>,
    salts: Vec<String>,
}

/// A validation under way.
struct Check<'a> {
    design: Design,
    prompts: Vec<Vec<TokenId>>,
    source: Option<Source>,
    salts: Salts,
    progress: &'a Progress,
    found: RemoteValidation,
}

impl Check<'_> {
    fn tell(&self, what: &str, index: usize) {
        let n = self.prompts.len();
        self.progress
            .phase(format!("{what}: prompt {} of {n}", index + 1));
    }

    async fn base(&mut self, a: &Asker) -> Result<Base> {
        let mut base = Base {
            prompt: Vec::new(),
            generated: Vec::new(),
            salts: Vec::new(),
        };
        let mut reset = None;
        for index in 0..self.prompts.len() {
            self.tell("alone, cold", index);
            let prompt = &self.prompts[index];
            if let Some(source) = self.source {
                base.prompt.push(a.prompt(prompt, source).await?.rows);
            }
            let mut salt = self.salts.next();
            let tokens = self.design.output_len;
            let mut cold = a.generate(prompt, tokens, Cache::Cold(&salt)).await?;
            let by_salt = a.cache_off_field().is_none();
            if by_salt && cold.found.cached.is_some_and(|n| n > 0) && reset != Some(false) {
                // The salt separates nothing here: empty the whole cache, if the server can.
                reset = Some(a.control.reset_prefix_cache(RESET_LIMIT).await.is_ok());
                salt = self.salts.next();
                cold = a.generate(prompt, tokens, Cache::Cold(&salt)).await?;
            }
            base.generated.push(cold);
            base.salts.push(salt);
        }
        Ok(base)
    }

    /// The same prompts again in the same cache scopes.
    async fn cold_warm(&mut self, a: &Asker, base: &Base) -> Result<()> {
        let mut warm = Vec::new();
        for (index, prompt) in self.prompts.iter().enumerate() {
            self.tell("warm cache", index);
            let (tokens, salt) = (self.design.output_len, &base.salts[index]);
            if a.cache_off_field().is_some() {
                // Slots remember what they served last: the prompt is put there first.
                a.generate(prompt, 1, Cache::Cold(salt)).await?;
            }
            warm.push(a.generate(prompt, tokens, Cache::Warm(salt)).await?);
        }
        let evidence = self.states(&base.generated, &warm);
        let result = self.generated_deltas(&base.generated, &warm)?;
        self.push("cold | warm cache", GENERATED_ROWS, evidence, &result)
    }

    /// Once more when all the others have been served: a prompt that has left its slot comes back
    /// from where the server keeps such states, if it does.
    async fn warm_later(&mut self, a: &Asker, base: &Base) -> Result<()> {
        const NAME: &str = "cold | warm later";
        let mut later = Vec::new();
        for (index, prompt) in self.prompts.iter().enumerate() {
            self.tell("warm cache, later", index);
            let (tokens, salt) = (self.design.output_len, &base.salts[index]);
            later.push(a.generate(prompt, tokens, Cache::Warm(salt)).await?);
        }
        let (evidence, unproven) = self.states(&base.generated, &later);
        if unproven.is_some() {
            let why = format!("this server does not keep every prompt that long ({evidence})");
            self.not_compared(NAME, GENERATED_ROWS, &why);
            return Ok(());
        }
        let result = self.generated_deltas(&base.generated, &later)?;
        self.push(NAME, GENERATED_ROWS, (evidence, unproven), &result)
    }

    fn states(&self, cold: &[Answer], warm: &[Answer]) -> (String, Option<String>) {
        let found = |all: &[Answer]| -> Vec<Found> { all.iter().map(|one| one.found).collect() };
        cache_states(&found(cold), &found(warm), self.prompts[0].len() as u32)
    }

    /// Every prompt once more in the same state: what the server's own noise is.
    async fn again(&mut self, a: &Asker, base: &Base) -> Result<()> {
        let (mut prompts, mut generated) = (Vec::new(), Vec::new());
        for index in 0..self.prompts.len() {
            self.tell("alone, again", index);
            let (prompt, salt) = (&self.prompts[index], self.salts.next());
            match self.source {
                Some(source) => prompts.push(a.prompt(prompt, source).await?.rows),
                None => {
                    let tokens = self.design.output_len;
                    generated.push(a.generate(prompt, tokens, Cache::Cold(&salt)).await?);
                }
            }
        }
        let (rows, result) = match self.source {
            Some(_) => (PROMPT_ROWS, self.prompt_deltas(&base.prompt, &prompts)?),
            None => (
                GENERATED_ROWS,
                self.generated_deltas(&base.generated, &generated)?,
            ),
        };
        let evidence = ("the same request twice".to_owned(), None);
        self.push("once | again", rows, evidence, &result)
    }

    /// Every prompt beside other requests.
    async fn mixed(&mut self, a: &Asker, base: &Base) -> Result<()> {
        let count = self.design.background;
        let background = Background::start(a, &self.prompts, count);
        // By the end of a request that counts for nothing the others are under way.
        let salt = self.salts.next();
        a.generate(&self.prompts[0], 2, Cache::Cold(&salt)).await?;
        let (mut rows, mut generated, mut fewest) = (Vec::new(), Vec::new(), count);
        for index in 0..self.prompts.len() {
            self.tell("beside other requests", index);
            let (prompt, salt) = (&self.prompts[index], self.salts.next());
            fewest = fewest.min(background.in_flight());
            if let Some(source) = self.source {
                rows.push(a.prompt(prompt, source).await?.rows);
            }
            let tokens = self.design.output_len;
            generated.push(a.generate(prompt, tokens, Cache::Cold(&salt)).await?);
            fewest = fewest.min(background.in_flight());
        }
        let (tokens, failure) = background.stop().await;
        let evidence = format!(
            "at least {fewest} of {count} other requests were awaited before and after each \
             prompt; those that ended made {tokens} tokens"
        );
        let unproven = match failure {
            Some(why) => Some(format!("a request beside it failed: {why}")),
            None if fewest == 0 => Some("at times no other request was in flight".to_owned()),
            None => None,
        };
        let evidence = (evidence, unproven);
        if self.source.is_some() {
            let result = self.prompt_deltas(&base.prompt, &rows)?;
            self.push("alone | mixed", PROMPT_ROWS, evidence.clone(), &result)?;
        }
        let result = self.generated_deltas(&base.generated, &generated)?;
        self.push("alone | mixed", GENERATED_ROWS, evidence, &result)
    }

    /// Every prompt on the other server.
    async fn against(&mut self, b: &Asker, base: &Base) -> Result<()> {
        let mut source = None;
        if self.source.is_some() {
            let sources = b.sources(&self.prompts[0]).await?;
            source = sources.found;
            if source.is_none() {
                let why = format!("{}: {}", b.url, sources.why_not());
                self.not_compared("A | B", PROMPT_ROWS, &why);
            }
        }
        let (mut rows, mut generated) = (Vec::new(), Vec::new());
        for index in 0..self.prompts.len() {
            self.tell("the other server", index);
            let (prompt, salt) = (&self.prompts[index], self.salts.next());
            if let Some(source) = source {
                rows.push(b.prompt(prompt, source).await?.rows);
            }
            let tokens = self.design.output_len;
            generated.push(b.generate(prompt, tokens, Cache::Cold(&salt)).await?);
        }
        let evidence = (format!("the same token ids to {}", b.url), None::<String>);
        if source.is_some() {
            let result = self.prompt_deltas(&base.prompt, &rows)?;
            self.push("A | B", PROMPT_ROWS, evidence.clone(), &result)?;
        }
        let result = self.generated_deltas(&base.generated, &generated)?;
        self.push("A | B", GENERATED_ROWS, evidence, &result)
    }

    /// Server A with altered contexts: what the rules would have seen.
    async fn plant(&mut self, a: &Asker, base: &Base) -> Result<()> {
        let len = self.prompts[0].len();
        for alteration in Alteration::ALL {
            let (mut deltas, mut generated) = (Vec::new(), Vec::new());
            for index in 0..self.prompts.len() {
                self.tell(alteration.name(), index);
                let (prompt, salt) = (&self.prompts[index], self.salts.next());
                let others = &self.prompts[(index + 1) % self.prompts.len()];
                // A single prompt is altered with its own tokens from elsewhere.
                let mut other = others.clone();
                other.rotate_left(len / 3);
                let altered = alteration.apply(prompt, &other);
                if let Some(source) = self.source {
                    let rows = a.prompt(&altered, source).await?.rows;
                    let (first, shift) = (alteration.first_row(len), alteration.shift(len));
                    let rows = moved(rows, shift, first);
                    let truth = base.prompt[index].iter();
                    let truth = truth.filter(|row| row.position as usize >= first);
                    deltas.push(self.rows(index, truth, &rows)?);
                }
                let tokens = self.design.output_len;
                let answer = a.generate(&altered, tokens, Cache::Cold(&salt)).await?;
                let rows = moved(answer.rows, alteration.shift(len), 0);
                generated.push(Answer { rows, ..answer });
            }
            let all = [
                (PROMPT_ROWS, deltas),
                (
                    GENERATED_ROWS,
                    self.generated_deltas(&base.generated, &generated)?,
                ),
            ];
            for (rows, deltas) in all {
                if deltas.is_empty() {
                    continue;
                }
                self.found.planted.push(Planted {
                    name: alteration.name().to_owned(),
                    rows: rows.to_owned(),
                    required: alteration.is_required(),
                    result: judge(RemoteStats::of(&deltas), &self.design.limits)?,
                });
            }
        }
        Ok(())
    }

    /// Names the comparisons of prompt tokens that fall away.
    fn without_prompt_rows(&mut self, sources: &Sources, has_other: bool) {
        let why = sources.why_not();
        self.not_compared("once | again", PROMPT_ROWS, &why);
        if self.design.background > 0 {
            self.not_compared("alone | mixed", PROMPT_ROWS, &why);
        }
        if has_other {
            self.not_compared("A | B", PROMPT_ROWS, &why);
        }
        self.not_compared("altered contexts", PROMPT_ROWS, &why);
    }

    fn not_compared(&mut self, name: &str, rows: &str, why: &str) {
        self.found.not_compared.push(NotCompared {
            name: name.to_owned(),
            rows: rows.to_owned(),
            why: why.to_owned(),
        });
    }

    fn push(
        &mut self,
        name: &str,
        rows: &str,
        (evidence, unproven): (String, Option<String>),
        deltas: &[PromptDeltas],
    ) -> Result<()> {
        self.found.compared.push(Compared {
            name: name.to_owned(),
            rows: rows.to_owned(),
            evidence,
            unproven,
            result: judge(RemoteStats::of(deltas), &self.design.limits)?,
        });
        Ok(())
    }

    fn rows<'r>(
        &self,
        index: usize,
        a: impl Iterator<Item = &'r TopRow>,
        b: &[TopRow],
    ) -> Result<PromptDeltas> {
        let (listed, tie) = (self.design.listed, self.design.limits.tie_margin);
        let mut rows = Vec::new();
        for (a, b) in a.zip(b) {
            ensure!(
                a.token == b.token,
                "prompt {index} position {}: the token is {:?} here and {:?} there: the servers \
                 have different tokenizers",
                a.position,
                a.token,
                b.token
            );
            rows.push(compare(a, b, listed, tie)?);
        }
        Ok(PromptDeltas::new(index.to_string(), rows))
    }

    fn prompt_deltas(&self, a: &[Vec<TopRow>], b: &[Vec<TopRow>]) -> Result<Vec<PromptDeltas>> {
        let pairs = a.iter().zip(b).enumerate();
        pairs.map(|(i, (a, b))| self.rows(i, a.iter(), b)).collect()
    }

    fn generated_deltas(&self, a: &[Answer], b: &[Answer]) -> Result<Vec<PromptDeltas>> {
        let (listed, tie) = (self.design.listed, self.design.limits.tie_margin);
        let mut all = Vec::new();
        for (index, (a, b)) in a.iter().zip(b).enumerate() {
            let name = index.to_string();
            let (rows, divergence) = compare_generated(&name, &a.rows, &b.rows, listed, tie)?;
            all.push(PromptDeltas {
                prompt: name,
                rows,
                divergence,
            });
        }
        Ok(all)
    }
}

/// Rows at their true positions, from `first` on.
fn moved(rows: Vec<TopRow>, shift: i64, first: usize) -> Vec<TopRow> {
    let at = |row: &TopRow| i64::from(row.position) + shift;
    let mut kept: Vec<TopRow> = rows.into_iter().filter(|r| at(r) >= first as i64).collect();
    for row in &mut kept {
        row.position = (i64::from(row.position) + shift) as u32;
    }
    kept
}
