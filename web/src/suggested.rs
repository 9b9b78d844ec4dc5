use tollgate_simulation::{Question, Share, Suggestion};
use wasm_bindgen::prelude::*;

use crate::fault::Fault;
use crate::scene::Scene;

/// Numbers for the first limit of a scene that would have refused at most a share of the calls.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Suggested {
    suggestion: Suggestion,
}

impl Suggested {
    /// Tries limits of the kind, the period and the keys of the first one.
    pub(crate) fn of(scene: &Scene, refuse_at_most: &str) -> Result<Self, Vec<Fault>> {
        let fault = |message| vec![Fault::of("suggest", message)];
        let refuse_at_most: Share = refuse_at_most.parse().map_err(fault)?;
        let (limit, is_global) = (scene.limit()?, scene.is_global());
        let (name, kind, per) = (limit.name().to_owned(), limit.kind, limit.period);
        let question = Question { name, kind, per, refuse_at_most, is_global };
        Ok(Self { suggestion: question.answer(scene.calls()?.made).map_err(fault)? })
    }
}

#[wasm_bindgen]
impl Suggested {
    /// Choices, four numbers each: the rate and the capacity, in whole tokens, and the calls and the keys that are
    /// refused.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "they are shown")]
    pub fn choices(&self) -> Vec<f64> {
        let choices = self.suggestion.choices.iter().flat_map(|choice| {
            let numbers = [choice.limit.rate, choice.limit.most()].map(|tokens| tokens.whole() as f64);
            let refused = [choice.refused_calls, choice.refused_keys].map(|count| count as f64);
            [numbers, refused].concat()
        });
        choices.collect()
    }

    /// The place of the answer among them.
    #[must_use]
    pub fn choice(&self) -> usize {
        self.suggestion.choice
    }

    /// Reasons to doubt the answer, each before a NUL.
    #[must_use]
    pub fn caveats(&self) -> String {
        self.suggestion.caveats.iter().flat_map(|caveat| [caveat, "\0"]).collect()
    }
}
