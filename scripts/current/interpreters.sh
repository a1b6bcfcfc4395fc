# SBCL, Guile and Lua: heaps of their own with collectors that move, protect and scan pages.
# shellcheck shell=bash
packages="sbcl guile-3.0 lua5.4"
drive() {
    bytes 1 6000000 >large
    client sbcl --noinform --non-interactive --eval '(let ((sum 0)) (dotimes (i 20) (with-open-file (in "large" :element-type (quote (unsigned-byte 8))) (let ((v (make-array (file-length in) :element-type (quote (unsigned-byte 8))))) (read-sequence v in) (setf sum (mod (+ (* sum 31) (reduce (function +) v)) 1000000007))))) (gc :full t) (format t "~a~%" sum))' || return
    client guile --no-auto-compile -c '(use-modules (rnrs bytevectors) (ice-9 binary-ports)) (define (once) (call-with-input-file "large" (lambda (p) (let* ((v (get-bytevector-all p)) (n (bytevector-length v))) (let loop ((i 0) (s 0)) (if (= i n) s (loop (+ i 1) (modulo (+ (* s 31) (bytevector-u8-ref v i)) 1000000007)))))) #:binary #t)) (display (list (once) (once) (once))) (gc) (newline)' || return
    client lua5.4 -e 'for i = 1, 10 do local f = io.open("large", "rb") local d = f:read("a") local s = d:rep(3):sub(100, -100) local o = io.open("out", "wb") o:write(s) o:close() print(#s) collectgarbage() end' || return
    digest out
}
