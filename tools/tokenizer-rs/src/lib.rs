// SPDX-License-Identifier: Apache-2.0

//! Before: the gateway's cgo. After: the tokenizers crate.
//!
//! A handle is made by `kindex_tokenizer_open` and freed by `kindex_tokenizer_close`. In
//! between any thread may encode with it. Whatever panics inside comes back as an error.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr;

use tokenizers::Tokenizer;

/// What `kindex_tokenizer_encode` returns besides the number of tokens.
const NOT_UTF8: i64 = -1;
const FAILED: i64 = -2;

/// Writes a message into the caller's buffer, cut to its size, and returns its length.
unsafe fn tell(message: &str, into: *mut u8, size: usize) -> usize {
    let n = message.len().min(size);
    if n > 0 {
        ptr::copy_nonoverlapping(message.as_ptr(), into, n);
    }
    n
}

/// Reads a tokenizer.json of `len` bytes. Returns null where it is none; then `why` has
/// the reason, of `*told` bytes, at most `why_size`.
///
/// # Safety
/// `json` must have `len` bytes, `why` room for `why_size`, and `told` must be valid.
#[no_mangle]
pub unsafe extern "C" fn kindex_tokenizer_open(json: *const u8, len: usize, why: *mut u8, why_size: usize, told: *mut usize) -> *mut Tokenizer {
    *told = 0;
    let bytes = std::slice::from_raw_parts(json, len);
    let made = catch_unwind(AssertUnwindSafe(|| Tokenizer::from_bytes(bytes)));
    match made {
        Ok(Ok(mut t)) => {
            // A prompt is neither cut nor filled up: engines do that by themselves.
            t.with_padding(None);
            if t.with_truncation(None).is_err() {
                *told = tell("it cannot be told not to cut text", why, why_size);
                return ptr::null_mut();
            }
            Box::into_raw(Box::new(t))
        }
        Ok(Err(e)) => {
            *told = tell(&e.to_string(), why, why_size);
            ptr::null_mut()
        }
        Err(_) => {
            *told = tell("it makes the reader panic", why, why_size);
            ptr::null_mut()
        }
    }
}

/// Writes the tokens of a text into `out`, which has room for `room` of them, and returns
/// how many there are: where that is more than `room`, nothing was written. Below 0: the
/// text is not UTF-8, or the tokenizer failed.
///
/// # Safety
/// `t` must come from `kindex_tokenizer_open`, `text` must have `len` bytes, `out` room
/// for `room` tokens.
#[no_mangle]
pub unsafe extern "C" fn kindex_tokenizer_encode(t: *const Tokenizer, text: *const u8, len: usize, special: bool, out: *mut u32, room: usize) -> i64 {
    let bytes: &[u8] = if len == 0 { &[] } else { std::slice::from_raw_parts(text, len) };
    let Ok(text) = std::str::from_utf8(bytes) else {
        return NOT_UTF8;
    };
    let t = &*t;
    let made = catch_unwind(AssertUnwindSafe(|| t.encode_fast(text, special)));
    let Ok(Ok(encoding)) = made else {
        return FAILED;
    };
    let ids = encoding.get_ids();
    if ids.len() <= room && !ids.is_empty() {
        ptr::copy_nonoverlapping(ids.as_ptr(), out, ids.len());
    }
    ids.len() as i64
}

/// Frees a tokenizer; null is none.
///
/// # Safety
/// `t` must come from `kindex_tokenizer_open` and is not used afterwards.
#[no_mangle]
pub unsafe extern "C" fn kindex_tokenizer_close(t: *mut Tokenizer) {
    if !t.is_null() {
        drop(Box::from_raw(t));
    }
}

/// Returns how many tokens there are, special ones too.
///
/// # Safety
/// `t` must come from `kindex_tokenizer_open`.
#[no_mangle]
pub unsafe extern "C" fn kindex_tokenizer_size(t: *const Tokenizer) -> usize {
    (*t).get_vocab_size(true)
}

/// Writes the text of tokens into `out`, which has room for `room` bytes, and returns how
/// many it has: where that is more than `room`, nothing was written. Below 0: it failed.
///
/// # Safety
/// As for `kindex_tokenizer_encode`.
#[no_mangle]
pub unsafe extern "C" fn kindex_tokenizer_decode(t: *const Tokenizer, ids: *const u32, n: usize, out: *mut u8, room: usize) -> i64 {
    let ids: &[u32] = if n == 0 { &[] } else { std::slice::from_raw_parts(ids, n) };
    let t = &*t;
    let made = catch_unwind(AssertUnwindSafe(|| t.decode(ids, false)));
    let Ok(Ok(text)) = made else {
        return FAILED;
    };
    if text.len() <= room {
        tell(&text, out, room);
    }
    text.len() as i64
}
