# gcc, clang and mold: a large generated source, with link-time optimisation; what comes out runs, and is byte for byte the same.
# shellcheck shell=bash
packages="gcc g++ libc6-dev clang lld mold make"
drive() {
    local at
    python3 - <<'PYTHON'
for unit in range(4):
    with open(f"u{unit}.c", "w") as file:
        for at in range(200):
            file.write(f"int f{unit}_{at}(int x) {{ int s = x; for (int i = 0; i < {at}; i++) s = s * 31 + i; return s; }}\n")
        file.write(f"static const char big{unit}[] = {{" + ",".join(str((n * 7 + unit) % 127) for n in range(60000)) + "};\n")
        file.write(f"int sum{unit}(void) {{ int s = 0; for (unsigned i = 0; i < sizeof big{unit}; i++) s = s * 33 + big{unit}[i]; return s + f{unit}_199(s); }}\n")
with open("main.c", "w") as file:
    file.write("#include <stdio.h>\n" + "".join(f"int sum{unit}(void);\n" for unit in range(4)))
    file.write("int main(void) { printf(\"%d %d %d %d\\n\", sum0(), sum1(), sum2(), sum3()); }\n")
PYTHON
    for at in gcc clang; do
        client $at -O1 -pipe u?.c main.c -o $at && ./$at && digest $at || return
        client $at -O1 -flto $([[ $at == clang ]] && echo -fuse-ld=lld) u?.c main.c -o $at-lto && ./$at-lto || return
    done
    client gcc -O1 -fuse-ld=mold u?.c main.c -o with-mold && ./with-mold && digest with-mold
}
