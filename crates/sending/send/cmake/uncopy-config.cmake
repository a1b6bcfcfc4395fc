# find_package(uncopy 0.2) gives the targets uncopy::send (shared) and uncopy::send-static.
# It lies in lib/cmake/uncopy of wherever it was installed.
get_filename_component(_uncopy_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
if(NOT TARGET uncopy::send)
  add_library(uncopy::send SHARED IMPORTED)
  set_target_properties(uncopy::send PROPERTIES
    IMPORTED_LOCATION "${_uncopy_prefix}/lib/libuncopy_send.so.0"
    IMPORTED_SONAME "libuncopy_send.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_uncopy_prefix}/include")
  add_library(uncopy::send-static STATIC IMPORTED)
  set_target_properties(uncopy::send-static PROPERTIES
    IMPORTED_LOCATION "${_uncopy_prefix}/lib/libuncopy_send.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_uncopy_prefix}/include"
    INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m;gcc_eh")
endif()
unset(_uncopy_prefix)
