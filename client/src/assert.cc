// libstdc++'s own assertions (_GLIBCXX_ASSERTIONS) call a function that is exported only since GLIBCXX_3.4.30, above
// this library's ceiling. This definition, local by the export map, takes its place and keeps the checks.
#include <cstdlib>

namespace std {

void __glibcxx_assert_fail(const char*, int, const char*, const char*) noexcept { abort(); }

}  // namespace std
