// The arguments of an operation: a struct of named fields. Python reads the structs from these files (arguments.py) and compares them with
// this library's description before any kernel runs, so that a field cannot be mistaken for another.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <tuple>

// An enumeration whose names are also part of the description.
#define ENUMERATION(keyword, name, ...)                                                                   \
    keyword name : int32_t{__VA_ARGS__};                                                                  \
    constexpr char name##_NAMES[] = #__VA_ARGS__;                                                         \
    static inline const char* kind(const name&) { return #name; }                                         \
    static inline bool is_valid(const name& x) { return (uint32_t)x < (uint32_t)how_many(name##_NAMES); }

// Lists all fields of a struct, in order, for checks and for the description.
#define FIELDS(...)                                       \
    static constexpr const char* NAMES = #__VA_ARGS__;    \
    auto fields() const { return std::tie(__VA_ARGS__); }

static constexpr int how_many(const char* names) {
    int n = 1;
    for (; *names; names++) n += *names == ',';
    return n;
}

// A pointer that may be null; a null pointer in any other field is an error.
template <class T> struct Optional {
    const T* pointer;
    operator const T*() const { return pointer; }
};

// The kind of a field, by its name in Python (arguments.Kind).
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
    for (int i = 0; i < N; i++) signs |= sizes[i];  // the sign bit is set if any size is negative
    return signs >= 0;
}
static inline bool is_valid(const double&) { return true; }
static inline bool is_valid(const bool& flag) {
    uint8_t byte;  // reading a bool that is neither 0 nor 1 would be undefined behaviour
    memcpy(&byte, &flag, 1);
    return byte <= 1;
}

// Whether fields fit together. Operations that have such conditions overload it.
template <class A> static inline bool is_complete(const A&) { return true; }

// Check all fields: 0 if valid, else 1 + index of the first invalid field; the number of fields + 1 if they do not fit together.
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
        if (size >= sizeof characters) size = sizeof characters - 1;  // truncated, which Python's comparison notices
    }
    const char* all() const { return characters; }

  private:
    char characters[1 << 14];
    size_t size = 0;
};

// Add one line: the operation, the size of its struct in bytes, and the name, kind and offset of each field.
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
