//! How many bytes a row takes on disk, by the way PostgreSQL lays out pages: nothing here is fitted.

use crate::bench::scaling::Keys;

/// The shape of rows that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    /// Bytes of a limit's name,
    pub(super) name: f64,
    /// and of a key, on average.
    pub(super) key: f64,
    /// Whether rows come in the order of the index.
    pub(super) sorted: bool,
    /// How many versions of each row there are: two where a batch inserts its rows, which fills the pages, and then takes from
    /// them, so that the second versions are elsewhere and have index entries of their own.
    pub(super) versions: f64,
}

impl Shape {
    pub(super) fn of(keys: Keys, rows: f64) -> Self {
        let (digits, loaded) =
            (rows.max(2.0).log10() - 0.05, Self { name: 0.0, key: 0.0, sorted: false, versions: 1.0 });
        match keys {
            Keys::Sorted => Self { name: 12.0, key: 5.0 + digits, sorted: true, ..loaded },
            Keys::Pairs => Self { name: 8.0, key: 3.9 + digits, ..loaded },
            Keys::Uuids => Self { name: 20.0, key: 36.0, ..loaded },
            Keys::Called => Self { name: 14.0, key: digits, versions: 2.0, ..loaded },
        }
    }

    /// Bytes of one version of a row with its place in the page's directory: a header of 24, the two texts with a length
    /// byte each, the shard, and three numbers of eight bytes which stand at multiples of eight.
    fn version(self) -> f64 {
        24.0 + aligned(1.0 + self.name + 1.0 + self.key + 2.0) + 24.0 + 4.0
    }

    /// Rows on a page. A tenth of it is left free for new versions.
    pub(super) fn rows_per_page(self) -> f64 {
        ((PAGE - 24.0 - PAGE / 10.0) / self.version()).floor() / self.versions
    }

    /// Bytes of a table per row.
    pub(super) fn heap(self) -> f64 {
        PAGE / self.rows_per_page()
    }

    /// Bytes that a page's image in the log takes: what is in use of it.
    pub(super) fn image(self) -> f64 {
        60.0 + self.rows_per_page() * self.versions * self.version()
    }

    /// Bytes of an index entry: a header of eight, the columns, and its place in the directory.
    pub(super) fn entry(self) -> f64 {
        8.0 + aligned(1.0 + self.name + 1.0 + self.key + 2.0) + 4.0
    }

    /// Bytes of the index per row. Pages that grow at the end are left nine tenths full; pages that split wherever a key
    /// comes are between half and quite full, ln 2 in the mean.
    pub(super) fn index(self) -> f64 {
        let full = if self.sorted { 0.9 } else { std::f64::consts::LN_2 };
        self.versions * PAGE / ((PAGE - 40.0) * full / self.entry()).floor()
    }
}

/// To the next multiple of eight, at which such numbers begin. Of a length that is a mean, the mean of what comes of it.
fn aligned(bytes: f64) -> f64 {
    let (below, above) = (bytes.floor(), bytes.ceil());
    let next = |bytes: f64| (bytes / 8.0).ceil() * 8.0;
    next(below) * (1.0 - (bytes - below)) + next(above) * (bytes - below)
}

/// Bytes of a page.
pub(super) const PAGE: f64 = 8192.0;
