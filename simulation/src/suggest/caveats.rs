use std::time::Duration;

use tollgate::{LimitKind, SECOND, Span};

use super::{Question, Suggestion};

impl Suggestion {
    /// Reasons to doubt the answer: mostly there are too few calls, or in too short a time.
    pub(super) fn doubts(&self, question: &Question, costs_mislead: bool) -> Vec<String> {
        let Question { refuse_at_most: share, is_global, .. } = question;
        let few = |allowed: usize, count: usize, thing: &str| {
            let least = share.least().filter(|_| allowed == 0)?;
            let plural = if count == 1 { "" } else { "s" };
            Some(format!(
                "{share} of {count} {thing}{plural} is less than one, so none may be refused: it takes {least} {thing}s \
                 to tell"
            ))
        };
        let lines = [
            few(self.allowed_calls, self.calls, "call"),
            few(self.allowed_keys, self.keys, "key").filter(|_| !is_global),
            self.too_short(question),
            self.first_fill(question),
            costs_mislead.then(|| COSTS.to_owned()),
        ];
        lines.into_iter().flatten().collect()
    }

    fn too_short(&self, Question { per, .. }: &Question) -> Option<String> {
        (self.span < *per).then(|| {
            let (span, per) = (rounded(self.span), Span(*per));
            format!("the trace spans {span}, less than the period of {per}: it tells nothing of a second period")
        })
    }

    /// Where keys live on the tokens that they begin with.
    fn first_fill(&self, Question { kind, per, .. }: &Question) -> Option<String> {
        let limit = &self.chosen().limit;
        let [rate, capacity] = [limit.rate, limit.most()].map(|tokens| tokens.micros().unsigned_abs());
        let fill = per.as_nanos() * u128::from(capacity) / u128::from(rate.max(1));
        (*kind == LimitKind::TokenBucket && self.span >= *per && fill > self.span.as_nanos()).then(|| {
            let span = rounded(self.span);
            let fill = rounded(Duration::from_nanos_u128(fill.min(Duration::MAX.as_nanos())));
            format!("the bucket takes {fill} to fill, and the trace spans {span}: a longer one may need a higher rate")
        })
    }
}

/// A span for people: in whole seconds, if it has some.
fn rounded(span: Duration) -> Span {
    Span(if span < SECOND { span } else { Duration::from_secs(span.as_secs()) })
}

const COSTS: &str = "costs differ, so a smaller number may be enough, too: a large call that is refused may leave room \
                     for several small ones";
