//! What a file is, by its name or by its first bytes.

/// The type of what nothing else is known of.
pub const UNKNOWN: &str = "application/octet-stream";

/// Endings of names and what they stand for, sorted.
const TYPES: [(&str, &str); 54] = [
    ("7z", "application/x-7z-compressed"),
    ("aac", "audio/aac"),
    ("atom", "application/atom+xml"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("bz2", "application/x-bzip2"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("deb", "application/vnd.debian.binary-package"),
    ("flac", "audio/flac"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("iso", "application/octet-stream"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("jsonld", "application/ld+json"),
    ("log", "text/plain; charset=utf-8"),
    ("m4a", "audio/mp4"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mkv", "video/matroska"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("oga", "audio/ogg"),
    ("ogg", "audio/ogg"),
    ("ogv", "video/ogg"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("rss", "application/rss+xml"),
    ("rtf", "application/rtf"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("webm", "video/webm"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xhtml", "application/xhtml+xml"),
    ("xml", "application/xml"),
    ("xz", "application/x-xz"),
    ("zip", "application/zip"),
];

/// First bytes and what they stand for.
const SIGNATURES: [(&[u8], &str); 15] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1a\x45\xdf\xa3", "video/webm"),
    (b"\0asm", "application/wasm"),
    (b"wOF2", "font/woff2"),
    (b"\xfd7zXZ\0", "application/x-xz"),
];

/// How many bytes [`by_content`] wants to see, of a file that has as many.
pub const HEADER_BYTES: usize = 512;

/// The type that the ending of a path's last segment stands for.
pub fn by_name(path: &[u8]) -> Option<&'static str> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let dot = name.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    let ending = std::str::from_utf8(&name[dot + 1..]).ok()?.to_ascii_lowercase();
    let index = TYPES.binary_search_by(|(known, _)| (*known).cmp(&ending)).ok()?;
    Some(TYPES[index].1)
}

/// The type that a file's first bytes stand for: a known signature, or text without control characters.
/// Never HTML: what a browser would run is said by the name only.
pub fn by_content(header: &[u8]) -> &'static str {
    if let Some((_, known)) = SIGNATURES.iter().find(|(signature, _)| header.starts_with(signature)) {
        return known;
    }
    let is_text = match std::str::from_utf8(header) {
        Ok(_) => true,
        // A character may be cut in two.
        Err(error) => error.error_len().is_none() && header.len() == HEADER_BYTES,
    };
    let plain = |byte: &u8| *byte >= b' ' && *byte != 0x7f || b"\t\n\r\x0c\x1b".contains(byte);
    if !header.is_empty() && is_text && header.iter().all(plain) {
        return "text/plain; charset=utf-8";
    }
    UNKNOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(TYPES.is_sorted());
    }

    #[test]
    fn names_are_known_by_their_endings() {
        assert_eq!(by_name(b"a/b.HTML"), Some("text/html; charset=utf-8"));
        assert_eq!(by_name(b"song.tar.gz"), Some("application/gzip"));
        for name in [&b"a.png/b"[..], b".png", b"a.", b"", b"a.unknown", b"a.\xff"] {
            assert_eq!(by_name(name), None);
        }
    }

    #[test]
    fn contents_are_known_by_their_first_bytes() {
        assert_eq!(by_content(b"OggS\0\x02"), "audio/ogg");
        assert_eq!(by_content("Grüße\n".as_bytes()), "text/plain; charset=utf-8");
        assert_eq!(by_content(b"<script>"), "text/plain; charset=utf-8");
        for header in [&b""[..], b"a\0b", b"\xc3", b"\xff\xfe"] {
            assert_eq!(by_content(header), UNKNOWN);
        }
        let mut cut = vec![b'a'; HEADER_BYTES];
        cut[HEADER_BYTES - 1] = 0xc3;
        assert_eq!(by_content(&cut), "text/plain; charset=utf-8");
    }
}
