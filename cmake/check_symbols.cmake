# cmake -DNM=nm -DSET=avx2 -DOBJECTS="a.o;b.o" -P check_symbols.cmake
#
# Fails where an object of an instruction set defines a symbol that other objects may share and that
# is not of the set's own namespace: an inline function of the standard library, say. The linker
# keeps one copy of it for the whole module, perhaps this one, and a processor without the
# instruction set would stumble over it.
set(shared "")
foreach(object IN LISTS OBJECTS)
  execute_process(
    COMMAND ${NM} --demangle ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY
  )
  string(REPLACE ";" "," symbols "${symbols}")
  string(REGEX MATCHALL "[^\n]+" lines "${symbols}")
  foreach(line IN LISTS lines)
    if(line MATCHES "^[0-9a-f]+ [WVu] (.*)$")
      set(symbol "${CMAKE_MATCH_1}")
      if(NOT symbol MATCHES "rayvec::${SET}::")
        string(APPEND shared "\n  ${symbol}")
      endif()
    endif()
  endforeach()
endforeach()
if(shared)
  message(FATAL_ERROR "the kernels of ${SET} define symbols that other objects share:${shared}")
endif()
