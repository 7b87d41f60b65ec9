# Warnings for our own host code; GPU code is checked by ptxas (tools/check_gpu_code.py).
add_library(flashrel_warnings INTERFACE)
target_compile_options(flashrel_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion>)
# GCC 12 sees overlap in std::string + (its bug 105651).
target_compile_options(flashrel_warnings INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
