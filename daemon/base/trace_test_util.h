// What a trace says of events and effects: each alternative of a variant, printed.
#ifndef CKPTD_DAEMON_BASE_TRACE_TEST_UTIL_H_
#define CKPTD_DAEMON_BASE_TRACE_TEST_UTIL_H_

#include <cxxabi.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <variant>

namespace ckptd {

// "Grant" of ckptd::snapshot::Grant.
inline std::string TypeName(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), free);
  const std::string whole = status == 0 ? text.get() : type.name();
  return whole.substr(whole.rfind(':') + 1);
}

// Empty but for what a text reads through: messages are there, lists have one entry.
template <typename Alternative>
Alternative Small() {
  Alternative made{};
  if constexpr (requires { made.state->ShortDebugString(); }) {
    made.state = std::make_shared<typename decltype(made.state)::element_type>();
  }
  if constexpr (requires { made.report->ShortDebugString(); }) {
    made.report = std::make_shared<typename decltype(made.report)::element_type>();
  }
  if constexpr (requires { made.slots.resize(1); }) made.slots.resize(1);
  if constexpr (requires { made.words.resize(1); }) made.words.resize(1);
  if constexpr (requires { made.outcomes.resize(1); }) made.outcomes.resize(1);
  return made;
}

// Every text begins with the name of what it tells of.
template <typename Variant>
void ExpectEachIsNamed() {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    const auto expect = [&]<size_t kOne>(std::integral_constant<size_t, kOne>) {
      using Alternative = std::variant_alternative_t<kOne, Variant>;
      const std::string text = ToString(Variant(std::in_place_index<kOne>, Small<Alternative>()));
      EXPECT_EQ(text.substr(0, text.find(' ')), TypeName(typeid(Alternative)));
    };
    (expect(std::integral_constant<size_t, kIndex>()), ...);
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_TRACE_TEST_UTIL_H_
