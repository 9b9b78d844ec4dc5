/// Belongs to the task that works on a queue. If the task ends early, with its runtime or by a panic, the waiting calls
/// are dismissed, because no other task would serve them.
pub(super) struct Worker<F: FnMut()> {
    dismiss: Option<F>,
}

impl<F: FnMut()> Worker<F> {
    pub(super) fn new(dismiss: F) -> Self {
        Self { dismiss: Some(dismiss) }
    }

    /// The queue was found empty. The next call starts another worker.
    pub(super) fn done(mut self) {
        self.dismiss = None;
    }
}

impl<F: FnMut()> Drop for Worker<F> {
    fn drop(&mut self) {
        if let Some(mut dismiss) = self.dismiss.take() {
            dismiss();
        }
    }
}
