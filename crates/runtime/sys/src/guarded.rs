//! Data that is accessible only under its lock.

use crate::lock::Lock;
use crate::sync::UnsafeCell;
use core::marker::PhantomData;

/// A value that is accessible only under its [`Lock`].
pub struct Guarded<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that holds the lock accesses the value.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// Returns a value behind an unlocked lock.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Returns a value behind an unlocked lock.
    #[cfg(loom)]
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock and acquires it.
    #[inline]
    #[must_use]
    pub fn lock(&self) -> GuardedRef<'_, T> {
        self.lock.lock();
        GuardedRef(self, PhantomData)
    }

    /// Acquires the lock if it is free.
    #[inline]
    #[must_use]
    pub fn try_lock(&self) -> Option<GuardedRef<'_, T>> {
        // `then_some` would construct, and drop, a guard that unlocks.
        self.lock.try_lock().then(|| GuardedRef(self, PhantomData))
    }

    /// The lock alone, to be held across a fork, during which no thread accesses the value.
    #[must_use]
    pub const fn raw(&self) -> &Lock {
        &self.lock
    }
}

/// A guard that gives access to the value. Not `Send`, because the lock has an owner.
pub struct GuardedRef<'a, T>(&'a Guarded<T>, PhantomData<*const ()>);

impl<T> core::ops::Deref for GuardedRef<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock, and the reference cannot outlive the guard.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> core::ops::DerefMut for GuardedRef<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock, and the exclusive reference cannot outlive the guard's borrow.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for GuardedRef<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}
