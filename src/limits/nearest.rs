/// The candidate that `written` is most probably a slip of: at most every third letter is wrong, missing or swapped.
pub(super) fn nearest<'c>(written: &str, candidates: impl Iterator<Item = &'c str>) -> Option<&'c str> {
    let slips = |candidate: &&str| strsim::osa_distance(&written.to_lowercase(), &candidate.to_lowercase());
    let best = candidates.min_by_key(slips)?;
    let most = (written.chars().count().max(best.chars().count()) / 3).max(1);
    (slips(&best) <= most).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_another_word_is_not() {
        let fields = ["kind", "rate", "per", "capacity", "max_reserved"];
        let meant = |written| nearest(written, fields.into_iter());
        assert_eq!(meant("capcity"), Some("capacity"));
        assert_eq!(meant("Rate"), Some("rate"));
        assert_eq!(meant("max-reserve"), Some("max_reserved"));
        assert_eq!(meant("pre"), Some("per"));
        assert_eq!(meant("burst"), None);
        assert_eq!(nearest("anything", [].into_iter()), None);
    }
}
