//! Locks that outlive a panic: no code that runs under one of them leaves what it guards half changed.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) fn lock<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn read<T>(guarded: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    guarded.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn write<T>(guarded: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    guarded.write().unwrap_or_else(PoisonError::into_inner)
}
