// What an operation is given: a struct of named fields. Python mirrors it (arguments.py), and reads this library's description of
// it before any kernel runs, so that no field can be another one there.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <tuple>

// An enumeration whose names Python lists, too.
#define ENUMERATION(keyword, name, ...)                                                                   \
    keyword name : int32_t{__VA_ARGS__};                                                                  \
    constexpr char name##_NAMES[] = #__VA_ARGS__;                                                         \
    static inline const char* kind(const name&) { return #name; }                                         \
    static inline bool is_valid(const name& x) { return (uint32_t)x < (uint32_t)how_many(name##_NAMES); }

// The fields of a struct, all and in their order.
#define FIELDS(...)                                       \
    static constexpr const char* NAMES = #__VA_ARGS__;    \
    auto fields() const { return std::tie(__VA_ARGS__); }

static constexpr int how_many(const char* names) {
    int n = 1;
    for (; *names; names++) n += *names == ',';
    return n;
}

// A pointer that may be null; any other is refused then.
template <class T> struct Optional {
    const T* pointer;
    operator const T*() const { return pointer; }
};

// What kind of field it is, as Python calls it.
template <class T> static inline const char* kind(T* const&) { return "written"; }
template <class T> static inline const char* kind(const T* const&) { return "read"; }
template <class T> static inline const char* kind(const Optional<T>&) { return "optional"; }
static inline const char* kind(const int64_t&) { return "size"; }
static inline const char* kind(const int64_t (&)[2]) { return "2 sizes"; }
static inline const char* kind(const int64_t (&)[3]) { return "3 sizes"; }
static inline const char* kind(const int64_t (&)[4]) { return "4 sizes"; }
static inline const char* kind(const double&) { return "number"; }
static inline const char* kind(const bool&) { return "flag"; }

template <class T> static inline bool is_valid(T* const& pointer) { return pointer != nullptr; }
template <class T> static inline bool is_valid(const Optional<T>&) { return true; }
static inline bool is_valid(const int64_t& size) { return size >= 0; }
template <int N> static inline bool is_valid(const int64_t (&sizes)[N]) {
    int64_t signs = 0;
    for (int i = 0; i < N; i++) signs |= sizes[i];
    return signs >= 0;
}
static inline bool is_valid(const double&) { return true; }
static inline bool is_valid(const bool& flag) {
    uint8_t byte;
    memcpy(&byte, &flag, 1);
    return byte <= 1;
}

// Whether parts and sizes fit together; an operation in which they may not says so of its own arguments.
template <class A> static inline bool is_complete(const A&) { return true; }

// Which field cannot be right: 0, or 1 + its place, which behind the last one stands for all of them together.
template <class A> static int fault_of(const A& a) {
    int place = 0, fault = 0;
    const auto check = [&](const auto& field) { place++, fault = fault || is_valid(field) ? fault : place; };
    std::apply([&](const auto&... field) { (check(field), ...); }, a.fields());
    return fault || is_complete(a) ? fault : place + 1;
}

class Text {
  public:
    __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
        va_list values;
        va_start(values, format);
        size += vsnprintf(characters + size, sizeof characters - size, format, values);
        va_end(values);
        if (size >= sizeof characters) size = sizeof characters - 1;  // whoever compares it sees that it ends
    }
    const char* all() const { return characters; }

  private:
    char characters[1 << 14];
    size_t size = 0;
};

// A line: an operation, the bytes of its struct, and of each field the name, the kind, and where it begins.
template <class A> static void describe(const char* operation, Text& text) {
    const A a{};
    const char* name = A::NAMES;
    text.add("%s, %d bytes", operation, (int)sizeof(A));
    const auto add = [&](const auto& field) {
        const int length = (int)strcspn(name, ",");
        text.add(", %.*s: %s at %d", length, name, kind(field), (int)((const char*)&field - (const char*)&a));
        name += length + strspn(name + length, ", ");
    };
    std::apply([&](const auto&... field) { (add(field), ...); }, a.fields());
    text.add("\n");
}
