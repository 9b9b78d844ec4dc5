use crate::answer::balance::Balance;
use crate::answer::decision::Decision;
use crate::call::{Call, Request};
use crate::error::Error;
use crate::gate::Gate;
use crate::gate::shared::Shared;
use crate::key::Key;
use crate::limit::Limit;
use crate::plan::{Answer, AppliedOverride, Ruling, Verb};

/// # Looking
impl Gate {
    /// Answers as [`consume`](Self::consume) would now, and takes nothing. The answer may be outdated when you act on
    /// it: if one token remains, all callers who check at the same time pass.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn check(&self, call: impl Into<Call>) -> Result<Decision, Error> {
        self.decide(self.prepared(Verb::check(call))?).await
    }

    /// The limit with the numbers that count for a key at present, by the [overrides](crate::Overrides) that this gate
    /// goes by. `None` if one of them makes the key unlimited.
    #[must_use]
    pub fn in_force(&self, limit: &Limit, key: &Key) -> Option<Limit> {
        let Shared { settings, overrides, .. } = &*self.inner.shared;
        let applied = overrides.as_ref().and_then(|overrides| overrides.applied_at(limit, key, settings.clock.at()));
        let Some(AppliedOverride { numbers, ruling, .. }) = applied else { return Some(limit.clone()) };
        (ruling != Some(Ruling::Unlimited)).then(|| numbers.unwrap_or_else(|| limit.clone()))
    }

    /// Tells how much a limit holds for a key now. The request's cost does not matter.
    ///
    /// # Errors
    ///
    /// Those of [`consume`](Self::consume).
    pub async fn balance(&self, request: Request) -> Result<Balance, Error> {
        self.change(Verb::Look(request)).await.map(Answer::balance)
    }
}
