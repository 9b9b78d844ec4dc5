use serde::{Deserialize, Deserializer, Serialize, Serializer, ser};

use super::{Position, Request, amount};
use crate::SECOND;
use crate::call_error::CallError;
use crate::call_name::{Keeping, Once, checked_span};
use crate::error::Error;
use crate::key::Key;
use crate::limit::{Limit, LimitKind};
use crate::timestamp::Timestamp;
use crate::tokens::Tokens;

/// A request whose key, cost and options are right.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct CheckedRequest {
    pub(crate) limit: Limit,
    pub(crate) key: Key,
    pub(crate) cost: Tokens,
    #[serde(default)]
    pub(crate) least: Option<Tokens>,
    #[serde(default)]
    pub(crate) leaving: Option<Tokens>,
    #[serde(default)]
    pub(crate) keeping: Option<Keeping>,
    #[serde(default)]
    pub(crate) once: Option<Once>,
    #[serde(default)]
    pub(crate) flat: bool,
    #[serde(default)]
    pub(crate) period: Option<(Timestamp, Timestamp)>,
    #[serde(default)]
    pub(crate) place: Position,
}

impl CheckedRequest {
    /// An option of it that goes only with verbs that consume, if it has one.
    pub(crate) fn consumed_with(&self) -> Option<&'static str> {
        let options = [
            ("up_to", self.least.is_some()),
            ("leaving", self.leaving.is_some()),
            ("first_of", self.place.alternative.is_some()),
            ("split", self.place.split.is_some()),
        ];
        options.into_iter().find_map(|(option, has_it)| has_it.then_some(option))
    }
}

impl From<CheckedRequest> for Request {
    fn from(checked: CheckedRequest) -> Self {
        let CheckedRequest { limit, key, cost, least, leaving, keeping, once, flat, period, place } = checked;
        let checked = |tokens: Option<Tokens>| tokens.map(amount).transpose();
        let (least, leaving) = (checked(least), checked(leaving));
        let (key, cost, place) = (Ok(key), amount(cost), Ok(place));
        Self { limit, key, cost, least, leaving, keeping, once, flat, period, place }
    }
}

impl Request {
    /// The request, if its key, cost and options are right.
    pub(crate) fn checked(self) -> Result<CheckedRequest, Error> {
        let Self { limit, key, cost, least, leaving, keeping, once, flat, period, place } = self;
        let name = || limit.name.clone().into();
        let key = key.map_err(|source| Error::Key { limit: name(), source })?;
        let fault = |source| Error::Call { limit: Some(name()), source };
        let amounts = cost.and_then(|cost| Ok((cost, least?, leaving?)));
        let (cost, least, leaving) = amounts.map_err(|source| fault(CallError::Cost(source)))?;
        let kept = match keeping {
            Some(_) if limit.lease().is_some() => Err(CallError::Leased),
            Some(keeping) => checked_span(keeping.span()).map(drop),
            None => Ok(()),
        };
        let kept = kept.and(match least {
            Some(Tokens::ZERO) => Err(CallError::LeastZero),
            Some(least) if least > cost => Err(CallError::LeastTooLarge),
            _ => Ok(()),
        });
        let has_steps = matches!(limit.kind, LimitKind::FixedWindow | LimitKind::SteppedBucket);
        let kept = kept.and(match period {
            Some(_) if !has_steps => Err(CallError::PeriodOfKind),
            Some((start, end)) if end < start.plus(SECOND) => Err(CallError::PeriodTooShort),
            Some((start, end)) if end > start.plus(Limit::MAX_PERIOD) => Err(CallError::PeriodTooLong),
            _ => Ok(()),
        });
        let kept = kept.and(match &place {
            Ok(Position { split: Some(_), .. }) if least.is_some() => Err(CallError::SplitPart),
            Ok(Position { split: Some(_), .. }) if limit.lease().is_some() => Err(CallError::SplitLease),
            place => place.map(drop),
        });
        let once = kept.and_then(|()| once.map(Once::checked).transpose());
        let once = once.map_err(fault)?;
        let place = place.unwrap_or_default();
        Ok(CheckedRequest { limit, key, cost, least, leaving, keeping, once, flat, period, place })
    }
}

impl Serialize for Request {
    /// Fails for a request whose key, cost or options are wrong.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.clone().checked().map_err(ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Request {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        CheckedRequest::deserialize(deserializer).map(Self::from)
    }
}
