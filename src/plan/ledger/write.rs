use crate::algebra::State;
use crate::call::StoredCall;

/// A row to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RowWrite {
    /// The row's place in [`Plan::rows`](crate::plan::Plan::rows).
    pub row: usize,
    /// Its new state.
    pub state: State,
}

/// A write to a stored call. `name` is its place in [`Plan::names`](crate::plan::Plan::names), and `call` is the last
/// call of the plan that changed it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "said above")]
pub enum CallWrite {
    /// The stored call was not there.
    Insert { call: usize, name: usize, row: StoredCall },
    /// Its receipt is used, and it no longer lapses.
    Use { call: usize, name: usize },
    /// The stored call is deleted.
    Delete { call: usize, name: usize },
}

impl CallWrite {
    /// The call of the plan with which this change is written or lost.
    pub(crate) fn call(&self) -> usize {
        let (Self::Insert { call, .. } | Self::Use { call, .. } | Self::Delete { call, .. }) = self;
        *call
    }

    /// Its place in [`Plan::names`](crate::plan::Plan::names).
    pub(crate) fn name(&self) -> usize {
        let (Self::Insert { name, .. } | Self::Use { name, .. } | Self::Delete { name, .. }) = self;
        *name
    }

    /// The row that is inserted, if one is.
    pub(crate) fn row(&self) -> Option<&StoredCall> {
        if let Self::Insert { row, .. } = self { Some(row) } else { None }
    }
}
