//! Data inside the lock that guards it.

use crate::lock::Lock;
use crate::sync::UnsafeCell;
use core::marker::PhantomData;

/// A value that is only reached through its [`Lock`].
pub struct Guarded<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is only reached by the thread that holds the lock.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// A value behind an unlocked lock.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// A value behind an unlocked lock.
    #[cfg(loom)]
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock and takes it.
    #[inline]
    #[must_use]
    pub fn lock(&self) -> Held<'_, T> {
        self.lock.lock();
        Held(self, PhantomData)
    }

    /// Takes the lock if it is free.
    #[inline]
    #[must_use]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        // Not `then_some`: what it drops unlocks.
        self.lock.try_lock().then(|| Held(self, PhantomData))
    }

    /// The lock by itself, to be held across a fork, during which nobody reaches the value.
    #[must_use]
    pub const fn raw(&self) -> &Lock {
        &self.lock
    }
}

/// A held lock, and the value that it guards. It stays with the thread that owns the lock.
pub struct Held<'a, T>(&'a Guarded<T>, PhantomData<*const ()>);

impl<T> core::ops::Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread holds the lock, and the value is borrowed as `self` is.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> core::ops::DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread holds the lock, and the value is borrowed as `self` is.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}
