// Calls that come back through frames of C++.
#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" typedef void (*probe)();

namespace {
volatile int sink;

struct Guard {
    ~Guard() { sink = sink + 1; }
};

struct Base {
    virtual ~Base() = default;
    virtual int call(probe p, const std::string &text) = 0;
};

struct Derived final : Base {
    int call(probe p, const std::string &text) override {
        Guard guard;
        std::string copy = text + "more";
        p();
        if (copy.size() > 3)
            throw std::runtime_error(copy);
        return 1;
    }
};
} // namespace

extern "C" void thrown(probe p) {
    std::unique_ptr<Base> base = std::make_unique<Derived>();
    try {
        sink = sink + base->call(p, "a text that is too long to be kept in place");
    } catch (const std::exception &error) {
        Guard guard;
        p();
        sink = sink + static_cast<int>(std::string(error.what()).size());
    }
}

extern "C" void called(probe p) {
    int count = 0;
    std::function<int(int)> function = [&](int value) {
        if (++count % 7 == 0)
            p();
        return value * 37 % 50;
    };
    std::vector<int> values(50);
    std::generate(values.begin(), values.end(), [&] { return function(count); });
    std::sort(values.begin(), values.end(), [&](int a, int b) { return function(a) < function(b); });
    sink = sink + values[3];
}
